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

/// The gradient of a parameter that was complete: stock Burn keeps it until the update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletedGradient {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Its bytes.
    pub bytes: usize,
}

/// A memory pool of a device at the end of the recording, as Burn's `Device::memory_pool_report`
/// tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Bytes of one page.
    pub page_size: u64,
    /// Pages held.
    pub pages: u64,
    /// The most pages held at once since the program began.
    pub pages_peak: u64,
    /// Bytes of the largest allocation.
    pub largest_alloc: u64,
}
