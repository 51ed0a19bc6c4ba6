use serde::{Deserialize, Serialize};

use super::bytes::Bytes;

/// The bytes in use at a moment of a [`MemoryTimeline`](super::MemoryTimeline).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Index of the phase in [`MemoryTimeline::marks`](super::MemoryTimeline::marks).
    pub mark: usize,
    /// Bytes in use.
    pub bytes: Bytes,
    /// Bytes that the pools of the device reserve, including those in use; `None` for the memory of the process.
    pub reserved: Option<usize>,
}

/// A complete gradient of a parameter: stock Burn keeps it until the update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedGradient {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Size in bytes.
    pub bytes: usize,
}
