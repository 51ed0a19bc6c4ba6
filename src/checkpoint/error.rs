use std::path::{Path, PathBuf};

use burn::store::RecordError;

use crate::error::FusedError;

/// An error in saving or loading a training.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// An option of the [`Checkpoint`](crate::Checkpoint) is invalid.
    #[error("{reason}")]
    Invalid {
        /// The option, and what to do.
        reason: &'static str,
    },

    /// The folder has no complete checkpoint, or none of the step that [`at_step`](crate::Checkpoint::at_step) names.
    #[error(
        "there is no complete checkpoint{of_step} in {folder}: start the training from step 0, pass another folder, or load a step that \
        `Checkpoint::steps` returns",
        of_step = step.map_or(String::new(), |step| format!(" of step {step}")),
        folder = folder.display()
    )]
    NotFound {
        /// The folder.
        folder: PathBuf,
        /// The step.
        step: Option<u64>,
    },

    /// A folder of Burn's checkpointers has files of a later epoch than the first, but no complete checkpoint.
    #[error(
        "no epoch in {folder} has all of its files, although epoch {last} was reached: a strategy that keeps one checkpoint may have \
        deleted it before the next one was complete. To train from the start, move the folder away, and keep two checkpoints \
        (`KeepLastNCheckpoints::new(2)`)",
        folder = folder.display()
    )]
    Incomplete {
        /// The folder.
        folder: PathBuf,
        /// The last epoch that has a file.
        last: usize,
    },

    /// A file of the checkpoint is missing, damaged, truncated, or of a later version of this crate, or can't be read.
    #[error(
        "{file} can't be read: {reason}. Restore the file, or load an earlier checkpoint with `Checkpoint::at_step`",
        file = file.display()
    )]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        reason: String,
    },

    /// The saved model, or the trained parameters that were saved, do not fit the model in training.
    #[error(
        "the parameters in {file} do not fit the model in training: {reason}. Create the model as it was when the checkpoint was \
        saved (the same structure, types, adapters and frozen parameters). To load what fits into another model, load the record of \
        `Checkpoint::model` with `validate(false)`, and with `allow_partial(true)` and `allow_unused(true)` if parameters are \
        missing",
        file = file.display()
    )]
    Model {
        /// The file.
        file: PathBuf,
        /// The parameters that differ.
        reason: String,
    },

    /// The saved optimizer state does not fit the optimizer in training.
    #[error(
        "{file} does not fit the optimizer of the training: {error}. To continue without its states, load the record of \
        `Checkpoint::model` into the model and create the training with it",
        file = file.display()
    )]
    Optimizer {
        /// The file.
        file: PathBuf,
        /// The cause, and what to do.
        error: FusedError,
    },

    /// The user data can't be written or read as its type.
    #[error(
        "the user data of the checkpoint can't be {done} as {of}: {reason}. Load the type that was saved, and make its \
        `serde::Serialize` and `serde::Deserialize` match"
    )]
    UserData {
        /// `written` or `read`.
        done: &'static str,
        /// The type of the user data.
        of: &'static str,
        /// The cause.
        reason: String,
    },

    /// The training has accumulated gradients, which a checkpoint does not contain.
    #[error(
        "the training has accumulated gradients, which a checkpoint does not contain: save after the step that applies them, or \
    first drop them with `drop_accumulated`. Gradients in the state of an optimizer can't be dropped: apply them with `step_accumulated`"
    )]
    Accumulated,

    /// The training can't be read from its devices.
    #[error(
        "the training can't be read from its devices and was not saved: {reason}. Resume from the last checkpoint"
    )]
    Devices {
        /// The error of the device.
        reason: String,
    },

    /// A file or folder can't be written, renamed or removed.
    #[error(
        "{file} can't be written: {reason}. Earlier checkpoints are unchanged. Free disk space, change the permissions of the \
        folder, or use another folder, and try again",
        file = file.display()
    )]
    Write {
        /// The file or the folder.
        file: PathBuf,
        /// The cause.
        reason: String,
    },

    /// The loaded model can't be trained.
    #[error(transparent)]
    Fused(#[from] FusedError),
}

backburn_base::debug_prints_message!(CheckpointError);

impl CheckpointError {
    pub(crate) fn cannot_write(file: &Path, reason: impl ToString) -> Self {
        Self::Write {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn unreadable(file: &Path, reason: impl ToString) -> Self {
        Self::Unreadable {
            file: file.to_path_buf(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn of_model(file: &Path, error: RecordError) -> Self {
        match error {
            RecordError::Io(reason) => Self::unreadable(file, reason),
            RecordError::Validation(reason) => Self::Model {
                file: file.to_path_buf(),
                reason,
            },
        }
    }
}
