use std::fmt::Display;
use std::path::{Path, PathBuf};

/// What can go wrong with a recording.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The program runs on another allocator.
    #[error(
        "the recording allocator is not installed: add `#[global_allocator] static ALLOCATOR: \
         backburn::memory::RecordingAllocator = backburn::memory::RecordingAllocator::new();` to \
         the program, or record a device that tells what its pools hold with `start_on`"
    )]
    NotInstalled,

    /// There is one log, and so one recording at a time.
    #[error("a memory recording is under way already: finish it first")]
    AlreadyRecording,

    /// Nothing happened between start and finish.
    #[error(
        "the recording is empty: nothing was allocated or marked between start and finish. Train a step between them"
    )]
    Empty,

    /// What was read from a file, or put together by hand, is not what a recorder wrote.
    #[error("the recording is damaged: {reason}. Record again")]
    Damaged {
        /// What can't be.
        reason: String,
    },

    /// CubeCL reads its configuration once.
    #[error(
        "the memory pools are laid out already: call `match_pool_sizes` before the first use of a \
         device, and configure CubeCL at one place"
    )]
    AlreadyConfigured,

    /// The result could not be written.
    #[error("{path} can't be written: {reason}", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

backburn_base::debug_prints_message!(MemoryError);

impl MemoryError {
    pub(super) fn unwritable(path: &Path, reason: impl Display) -> Self {
        Self::Unwritable {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}
