use std::sync::Once;

use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::error::MemoryError;

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
/// backburn_memory::match_pool_sizes().unwrap();
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

/// Says once what is lost where nobody has called [`match_pool_sizes`], and no `cubecl.toml` has the setting.
///
/// Gradients of so many `bytes` are released in training.
pub fn recommend_size_match(bytes: usize) {
    static SAID: Once = Once::new();
    let config = CubeClRuntimeConfig::get();
    if matches!(config.memory.persistent_memory, PersistentMemory::SizeMatch) {
        return;
    }
    SAID.call_once(|| {
        log::warn!(
            "the memory pools of the device keep most of the {:.1} MB of gradients that every step releases. Call \
             `backburn::memory::match_pool_sizes()` first in `main` to have about that much less reserved",
            bytes as f64 / 1e6
        );
    });
}
