//! Replacement of a file at once.

use std::fs::File;
use std::io::{Result, Write};
use std::path::Path;

/// Writes `bytes` to a new file and renames it to `file`, which may be a link to a file of the user.
pub fn replace(file: &Path, bytes: &[u8]) -> Result<()> {
    replace_with(file, |to| to.write_all(bytes))
}

/// Replaces `file` as [`replace`] does, by a file that `write` writes.
pub fn replace_with(file: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let incomplete = file.with_file_name(name);
    write(&mut File::create(&incomplete)?)?;
    std::fs::rename(&incomplete, file)
}
