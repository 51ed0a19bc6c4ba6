use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::disk;
use super::error::CheckpointError;
use super::part;

/// One of the two folders within that of a checkpoint that parts may be in.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    #[serde(rename = "parts-a")]
    A,
    #[serde(rename = "parts-b")]
    B,
}

impl Slot {
    /// That for a new checkpoint, beside the one that is there.
    pub(super) fn beside(before: Option<Self>, folder: &Path) -> Self {
        match before {
            Some(slot) => slot.other(),
            // If the manifest is gone, somebody may want to see what is left.
            None if Self::A.folder(folder).exists() && !Self::B.folder(folder).exists() => Self::B,
            None => Self::A,
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(super) fn folder(self, checkpoint: &Path) -> PathBuf {
        checkpoint.join(match self {
            Self::A => "parts-a",
            Self::B => "parts-b",
        })
    }

    /// Where a part in it is.
    pub(super) fn path(self, part: &str, checkpoint: &Path) -> PathBuf {
        self.folder(checkpoint).join(part)
    }

    /// Removes the parts in it, whole and unfinished ones, and itself if that was all.
    pub(super) fn clear(self, checkpoint: &Path) -> Result<(), CheckpointError> {
        let folder = self.folder(checkpoint);
        for name in disk::names(&folder)? {
            if part::ALL
                .iter()
                .any(|part| name == *part || disk::is_unfinished(&name, part))
            {
                disk::remove(&folder.join(name))?;
            }
        }
        match fs::remove_dir(&folder) {
            // Somebody else's file is in it.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(CheckpointError::cannot_write(&folder, error)),
            Ok(()) => Ok(()),
        }
    }

    /// The same where the next save can do it as well.
    pub(super) fn clear_or_warn(self, checkpoint: &Path) {
        if let Err(error) = self.clear(checkpoint) {
            log::warn!("what is left of another checkpoint was not removed: {error}");
        }
    }
}
