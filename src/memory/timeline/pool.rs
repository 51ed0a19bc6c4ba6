use serde::{Deserialize, Serialize};

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
