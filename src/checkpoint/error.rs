use std::path::{Path, PathBuf};

use burn::store::RecordError;

use crate::error::FusedError;

/// Why a training was not saved, or not loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Nothing was saved in the folder, or no save has come to its end.
    #[error(
        "there is no checkpoint in {folder}: no save was completed there. Begin anew, or name another folder",
        folder = folder.display()
    )]
    NotThere {
        /// The folder.
        folder: PathBuf,
    },

    /// A file of the checkpoint is gone.
    #[error(
        "{file}, a part of the checkpoint, is missing: put it back, or go on from another checkpoint",
        file = file.display()
    )]
    Missing {
        /// The file.
        file: PathBuf,
    },

    /// A file that was not saved with the others.
    #[error(
        "{file} is not what was saved with the other files of the checkpoint ({found} instead of {expected}): it is damaged, \
         cut off, or of another checkpoint. Put the right one back, or go on from another checkpoint",
        file = file.display()
    )]
    OtherPart {
        /// The file.
        file: PathBuf,
        /// Length and checksum of what was saved.
        expected: String,
        /// Those of what is there.
        found: String,
    },

    /// A file that can't be read, or holds something else than it should.
    #[error("{file} can't be read: {reason}. Put it back as it was, or go on from another checkpoint", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },

    /// A checkpoint of a later version of this crate.
    #[error(
        "{file} is that of a checkpoint in format {found}, and this version of backburn knows format {known}: load it with the \
         version that has saved it",
        file = file.display()
    )]
    OtherFormat {
        /// The file that says so.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// That of this version.
        known: u32,
    },

    /// The model that was saved is not that of the training.
    #[error(
        "the model in {file} is not that of the training: {reason}. Make the model as it was when it was saved, in structure and in \
         type; `Checkpoint::model` loads it into another",
        file = file.display()
    )]
    Model {
        /// The file.
        file: PathBuf,
        /// What Burn says, which names the parameters.
        reason: String,
    },

    /// The optimizer state that was saved is not for that of the training.
    #[error("{file} does not fit the optimizer of the training: {error}", file = file.display())]
    Optimizer {
        /// The file.
        file: PathBuf,
        /// Why, and what to do.
        error: FusedError,
    },

    /// The plan can't be written or read as the type that it has.
    #[error(
        "the plan of the training can't be {done} as {of}: {reason}. It has to come back as what it was, by its `serde::Serialize` and \
         `serde::Deserialize`"
    )]
    Plan {
        /// `written` or `read`.
        done: &'static str,
        /// Its type.
        of: &'static str,
        /// Why.
        reason: String,
    },

    /// There are gradients of micro-batches, which a checkpoint does not hold.
    #[error(
        "there are accumulated gradients, which a checkpoint does not hold: save after the step that uses them, or drop them \
         before with `drop_accumulated` (those in the state of an optimizer stay there, so step first)"
    )]
    AmidGroup,

    /// The training can't be read from its devices.
    #[error(
        "the training can't be read from its devices, and was not saved: {reason}. The checkpoint that was there before is still there"
    )]
    Devices {
        /// What the device says.
        reason: String,
    },

    /// Something can't be written, or removed.
    #[error(
        "{file} can't be written: {reason}. The checkpoint that was there before, if any, is still there. Make room, or change the \
         permissions of the folder, and save again, or name another folder",
        file = file.display()
    )]
    Write {
        /// The file or the folder.
        file: PathBuf,
        /// Why.
        reason: String,
    },

    /// The model that was loaded can't be trained.
    #[error(transparent)]
    Fused(#[from] FusedError),
}

impl CheckpointError {
    pub(super) fn cannot_write(file: &Path, reason: impl ToString) -> Self {
        Self::Write {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn cannot_read(file: &Path, reason: impl ToString) -> Self {
        Self::Unreadable {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn of_another_model(file: &Path, error: RecordError) -> Self {
        let reason = match error {
            RecordError::Io(reason) => return Self::cannot_read(file, reason),
            RecordError::Validation(reason) => reason,
        };
        let file = file.to_path_buf();
        Self::Model { file, reason }
    }
}
