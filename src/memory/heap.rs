/// Keeps the heap from giving pages back to the system that the next update takes again.
///
/// In a fused step the buffers of one update after the other come and go at the top of the heap, and
/// glibc gives that part back whenever it is larger than a threshold: the pages are fetched again, zeroed,
/// for the next update. From the first fused optimizer on, the heap keeps its size. A training step needs
/// what the step before did, so it stays what the largest step takes.
///
/// What the user has set in the environment stays. Other allocators and systems are left alone.
pub(crate) fn keep_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let is_set = |name| std::env::var_os(name).is_some();
            if !is_set("MALLOC_TRIM_THRESHOLD_") && !is_set("GLIBC_TUNABLES") {
                glibc::never_trim();
            }
        });
    }
}

/// `mallopt(3)`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    // From <malloc.h>.
    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    /// The largest that glibc takes: what is smaller comes from the heap. By default it grows up to
    /// here by and by, but not once a threshold has been set.
    const LARGEST_MMAP_THRESHOLD: c_int = 32 * 1024 * 1024;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    pub(super) fn never_trim() {
        // SAFETY: both parameters exist and take any value; one that is refused changes nothing. Each
        // call writes a single word under the lock of the main arena. Threads that allocate meanwhile
        // see the word before or after; both are valid thresholds.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD);
            mallopt(M_TRIM_THRESHOLD, -1);
        }
    }
}
