use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::error::CheckpointError;

/// A lock on a folder of checkpoints, released when it is dropped and when the process ends.
pub(super) struct Lock(Option<File>);

impl Lock {
    /// Waits until no process saves to the folder or loads from it.
    pub(super) fn exclusive(folder: &Path) -> Result<Self, CheckpointError> {
        let path = Self::path(folder);
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| CheckpointError::cannot_write(&path, error))?;
        Ok(Self::of(file, File::lock))
    }

    /// Waits until no process saves to the folder. A folder that can't be written to may have no lock.
    pub(super) fn shared(folder: &Path) -> Self {
        match File::open(Self::path(folder)) {
            Ok(file) => Self::of(file, File::lock_shared),
            Err(_) => Self(None),
        }
    }

    fn of(file: File, lock: fn(&File) -> io::Result<()>) -> Self {
        // Some file systems have no locks.
        if let Err(error) = lock(&file) {
            log::debug!("a checkpoint was not locked: {error}");
        }
        Self(Some(file))
    }

    fn path(folder: &Path) -> PathBuf {
        folder.join("checkpoint.lock")
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = file.unlock()
        {
            log::debug!("a checkpoint was not unlocked: {error}");
        }
    }
}
