//! Records the memory of a device, as far as it tells what its memory pools hold, and sets these pools up.

mod log;
#[cfg(feature = "cubecl")]
mod size_match;

pub(super) use log::DeviceLog;
#[cfg(feature = "cubecl")]
pub use size_match::match_pool_sizes;
#[cfg(feature = "cubecl")]
pub(crate) use size_match::recommend_size_match;
