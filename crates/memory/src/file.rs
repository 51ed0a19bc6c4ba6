use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use burn_pack::AtomicFile;

use super::error::MemoryError;

/// Writes `contents` to the file at `path`: all of it, or the file stays as it was.
///
/// It is written beside the file and moved there, so its folder must take another file. Links are followed, permissions stay (on Unix).
/// What is no file, a pipe or a device, is written to.
pub(super) fn write(path: &Path, contents: &[u8]) -> Result<(), MemoryError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return fs::write(path, contents).map_err(|error| MemoryError::unwritable(path, error));
    }
    // What is not there yet is no link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let replace = || -> Result<(), Box<dyn Error>> {
        let (beside, mut file) = AtomicFile::create(&target)?;
        file.write_all(contents)?;
        // Some file systems say only now that there is no room.
        file.sync_all()?;
        drop(file);
        Ok(beside.commit()?)
    };
    replace().map_err(|error| MemoryError::unwritable(path, error))
}
