use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::super::error::MemoryError;

/// Lets CubeCL's memory pools hand out weights, optimizer states and gradients by exact size, so that
/// the memory of a released gradient serves the next one: the best setting for fused training.
///
/// By default the pools cut allocations of all sizes out of large pages, which they keep; what fusing
/// frees shows in the bytes in use, and hardly in the bytes reserved (figures in `docs/memory.md`).
/// The setting is CubeCL's `persistent_memory = "size-match"`. It costs memory where activations
/// happen to have the size of a weight, in inference above all.
///
/// Call it first in `main`: it counts for all devices of the process, on top of what a `cubecl.toml`
/// says.
///
/// ```no_run
/// backburn::memory::match_pool_sizes().unwrap();
/// ```
///
/// # Errors
///
/// If CubeCL was configured or used before.
pub fn match_pool_sizes() -> Result<(), MemoryError> {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.memory.persistent_memory = PersistentMemory::SizeMatch;
    match CubeClRuntimeConfig::try_set(config) {
        true => Ok(()),
        false => Err(MemoryError::AlreadyConfigured),
    }
}
