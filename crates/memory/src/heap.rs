/// What in the environment counts for more than a call.
const SETTINGS: [&str; 5] = [
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
];

/// Keeps the heap of the process from giving pages back to the system that the next training step takes
/// again. Returns whether it does so from now on.
///
/// The buffers of a training step come and go, in a fused step those of one update after the other. glibc gives
/// the top of its heap back whenever it is larger than a threshold, and each buffer of more than 32 MiB when it is freed.
/// It takes the same pages again a moment later, zeroed by the system: time that this call saves. It counts for
/// the whole process, so the rest of this crate leaves it to the program. Call it first in `main`:
///
/// ```
/// backburn_memory::keep_pages();
/// ```
///
/// It costs memory that other programs could use, between steps and after the training: the heap stays
/// as large as it has ever been, with gaps that no buffer fits in. The bytes that the program has allocated, which a
/// [`MemoryRecorder`](super::MemoryRecorder) counts, are the same with and without.
///
/// It works with glibc on Linux, where it sets `M_TRIM_THRESHOLD` to never, `M_MMAP_MAX` to 0, so that buffers of any size
/// come from the heap, and `M_ARENA_MAX` to 1: other threads would allocate from heaps of their own, which go back to the system
/// when they are empty.
///
/// If the environment sets `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `MALLOC_MMAP_MAX_`, `MALLOC_ARENA_MAX` or
/// `GLIBC_TUNABLES`, nothing is changed. Neither is anything on other systems; and a program on another allocator than
/// the system's does not profit.
pub fn keep_pages() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    !SETTINGS.into_iter().any(is_set) && never_trim()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use glibc::never_trim;

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn never_trim() -> bool {
    false
}

/// `mallopt(3)`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    // From <malloc.h>.
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_MAX: c_int = -4;
    const M_ARENA_MAX: c_int = -8;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    /// Whether glibc takes the setting.
    pub(super) fn never_trim() -> bool {
        // SAFETY: all three parameters exist and take any value; one that is refused changes nothing. Each
        // call writes a single word under the lock of the main arena. Threads that allocate meanwhile
        // see the word before or after; both are valid thresholds, a limit on arenas leaves those that
        // there are, and a buffer that was mapped by itself says so in its header, however many may be.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            mallopt(M_ARENA_MAX, 1);
            mallopt(M_TRIM_THRESHOLD, -1) == 1
        }
    }
}
