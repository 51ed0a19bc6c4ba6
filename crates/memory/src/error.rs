use std::fmt::Display;
use std::path::{Path, PathBuf};

/// An error of a recording.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The program runs on another allocator.
    #[error(
        "the recording allocator is not installed: add `#[global_allocator] static ALLOCATOR: \
         RecordingAllocator = RecordingAllocator::new();` to the program, or use `start_on` with a \
         device that reports its memory pools"
    )]
    NotInstalled,

    /// A recording is in progress. The process has a single log.
    #[error("a memory recording is already in progress: finish it first")]
    AlreadyRecording,

    /// Nothing happened between start and finish.
    #[error(
        "the recording is empty: nothing was allocated or marked between start and finish. Train a step between them"
    )]
    Empty,

    /// CubeCL has already read its configuration. It reads it once.
    #[error(
        "the memory pools are already configured: call `match_pool_sizes` before any device is \
         used, and don't configure CubeCL elsewhere, too"
    )]
    AlreadyConfigured,

    /// The result could not be written.
    #[error("{path} can't be written: {reason}", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
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
