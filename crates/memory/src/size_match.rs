use std::sync::Once;

use burn_cubecl::cubecl::config::memory::PersistentMemory;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::error::MemoryError;

/// Lets CubeCL's memory pools allocate weights, optimizer states and gradients by exact size, so that the next gradient reuses
/// the memory of a released one. This is the best setting for fused training.
///
/// By default the pools cut allocations of all sizes out of large pages, which they keep. Memory that fused training frees then
/// reduces the bytes in use, but hardly the bytes reserved (figures in `docs/memory.md`). The setting is CubeCL's
/// `persistent_memory = "size-match"`. It costs memory if activations happen to have the size of a weight, above all in
/// inference.
///
/// Call it first in `main`. It applies to all devices of the process, in addition to a `cubecl.toml`.
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

/// Logs a recommendation once if [`match_pool_sizes`] was not called, and no `cubecl.toml` has the setting.
///
/// `bytes` is the size of the gradients that a training step releases.
pub fn recommend_size_match(bytes: usize) {
    static WARNED: Once = Once::new();
    let config = CubeClRuntimeConfig::get();
    if matches!(config.memory.persistent_memory, PersistentMemory::SizeMatch) {
        return;
    }
    WARNED.call_once(|| {
        log::warn!(
            "the memory pools of the device keep most of the {:.1} MB of gradients that each step releases. To reserve \
             about that much less, call `backburn::memory::match_pool_sizes()` first in `main`",
            bytes as f64 / 1e6
        );
    });
}
