use serde::{Deserialize, Serialize};

use super::bytes::Bytes;

/// The bytes in use at a moment of a [`MemoryTimeline`](super::MemoryTimeline).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Index of the phase in [`MemoryTimeline::marks`](super::MemoryTimeline::marks).
    pub mark: usize,
    /// The bytes in use.
    pub bytes: Bytes,
    /// The bytes that the pools of the device hold, those in use among them; `None` for the memory
    /// of the process.
    pub reserved: Option<usize>,
}
