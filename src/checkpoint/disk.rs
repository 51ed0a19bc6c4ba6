//! Files that are on disk when they are said to be.

use std::fs::{self, DirEntry, File};
use std::io::{self, Write};
use std::path::Path;

use burn_pack::AtomicFile;

use super::error::CheckpointError;

/// Makes `folder` and those that it is in.
pub(super) fn create_folder(folder: &Path) -> Result<(), CheckpointError> {
    if folder.is_dir() {
        return Ok(());
    }
    let cannot = |error| CheckpointError::cannot_write(folder, error);
    fs::create_dir_all(folder).map_err(cannot)?;
    match folder.parent() {
        Some(parent) if parent != Path::new("") => flush_folder(parent),
        _ => flush_folder(Path::new(".")),
    }
}

/// Writes a file that is there whole, on disk, or not at all.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let cannot = |error: &dyn ToString| CheckpointError::cannot_write(path, error.to_string());
    let (unfinished, mut file) = AtomicFile::create(path).map_err(|error| cannot(&error))?;
    file.write_all(bytes).map_err(|error| cannot(&error))?;
    file.sync_all().map_err(|error| cannot(&error))?;
    drop(file);
    unfinished.commit().map_err(|error| cannot(&error))
}

/// Whether `name` is what a killed write of the file `of` has left.
pub(super) fn is_unfinished(name: &str, of: &str) -> bool {
    let rest = name.strip_prefix(of);
    rest.is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".tmp"))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    fs::read(path).map_err(|error| CheckpointError::cannot_read(path, error))
}

pub(super) fn remove(path: &Path) -> Result<(), CheckpointError> {
    fs::remove_file(path).map_err(|error| CheckpointError::cannot_write(path, error))
}

/// The names of what is in `folder`; none if it is not there.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let name = |entry: io::Result<DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = fs::read_dir(folder).and_then(|entries| entries.map(name).collect());
    names.map_err(|error| CheckpointError::cannot_write(folder, error))
}

/// Lets what was made, moved or removed in `folder` be so on disk.
pub(super) fn flush_folder(folder: &Path) -> Result<(), CheckpointError> {
    // Elsewhere a folder can't be opened.
    if cfg!(unix) {
        let flushed = File::open(folder).and_then(|opened| opened.sync_all());
        flushed.map_err(|error| CheckpointError::cannot_write(folder, error))?;
    }
    Ok(())
}
