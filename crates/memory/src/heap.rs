/// Environment variables that override the call.
const SETTINGS: [&str; 5] = [
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
];

/// Keeps freed pages of the heap in the process, for the next training step. Returns `true` if glibc accepted the settings.
///
/// A training step allocates and frees many buffers, in a fused step those of one update after the other. glibc returns the
/// top of its heap to the system whenever it is larger than a threshold, and each buffer of more than 32 MiB when it is
/// freed. A moment later it allocates the same pages again, zeroed by the system. This call saves that time. It applies to
/// the whole process, so the rest of this crate leaves it to the program. Call it first in `main`:
///
/// ```
/// backburn_memory::keep_pages();
/// ```
///
/// It costs memory that other programs could use, between steps and after the training: the heap stays at its largest
/// size, with fragmentation. The allocated bytes, which a [`MemoryRecorder`](super::MemoryRecorder) counts, are the same.
///
/// It works with glibc on Linux. It disables trimming (`M_TRIM_THRESHOLD`), sets `M_MMAP_MAX` to 0, so that buffers of
/// any size come from the heap, and sets `M_ARENA_MAX` to 1, because the heaps of other threads return to the system
/// when they are empty.
///
/// If the environment sets `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `MALLOC_MMAP_MAX_`, `MALLOC_ARENA_MAX`
/// or `GLIBC_TUNABLES`, the call changes nothing. It also changes nothing on other systems, or in a program with
/// another allocator than that of the system.
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

    /// Sets the limits. Returns `true` if glibc accepts them.
    pub(super) fn never_trim() -> bool {
        // SAFETY: all three parameters exist and take any value; a refused value changes nothing. Each call writes a
        // single word under the lock of the main arena. Threads that allocate at the same time read the old or the new
        // word. Both are valid thresholds, a limit on arenas keeps the existing ones, and a buffer with its own mapping
        // is marked in its header under any limit.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            mallopt(M_ARENA_MAX, 1);
            mallopt(M_TRIM_THRESHOLD, -1) == 1
        }
    }
}
