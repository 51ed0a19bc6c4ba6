//! Locks on a folder of checkpoints, released when the file is dropped and when the process ends.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;

/// Waits until no process saves to the folder or loads from it.
pub(super) fn exclusive(folder: &Path) -> Result<File, CheckpointError> {
    let path = path(folder);
    let file = File::options()
        .create(true)
        .append(true)
        // Windows locks no file that is open only to append.
        .read(true)
        .open(&path)
        .map_err(|error| CheckpointError::cannot_write(&path, error))?;
    Ok(locked(file, File::lock))
}

/// Waits until no process saves to the folder. A folder that can't be written to may have no lock.
pub(super) fn shared(folder: &Path) -> Option<File> {
    let file = File::open(path(folder)).ok()?;
    Some(locked(file, File::lock_shared))
}

fn locked(file: File, lock: fn(&File) -> io::Result<()>) -> File {
    loop {
        match lock(&file) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Some file systems have no locks.
            Err(error) => {
                log::warn!(
                    "a folder of checkpoints is not locked: {error}. Let no other process use it"
                );
                return file;
            }
            Ok(()) => return file,
        }
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("checkpoint.lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_lock_excludes_other_handles() {
        let folder = tempfile::tempdir().unwrap();
        let held = exclusive(folder.path()).unwrap();
        let other = File::open(path(folder.path())).unwrap();
        assert!(other.try_lock_shared().is_err());
        drop(held);
        other.try_lock_shared().unwrap();
    }
}
