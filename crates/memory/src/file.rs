use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;

use burn_pack::AtomicFile;

use super::error::MemoryError;

/// Writes `contents` to the file at `path` atomically.
///
/// A temporary file in the same folder is renamed, so the folder must be writable. Links are followed, and permissions are kept
/// (on Unix). A path that is not a regular file, such as a pipe or a device, is written directly.
pub(super) fn write(path: &Path, contents: &[u8]) -> Result<(), MemoryError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return fs::write(path, contents).map_err(|error| MemoryError::unwritable(path, error));
    }
    // A missing file is not a link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let replace = || -> Result<(), Box<dyn Error>> {
        let (beside, mut file) = AtomicFile::create(&target)?;
        file.write_all(contents)?;
        // Some file systems report a full disk only here.
        file.sync_all()?;
        drop(file);
        Ok(beside.commit()?)
    };
    replace().map_err(|error| MemoryError::unwritable(path, error))
}
