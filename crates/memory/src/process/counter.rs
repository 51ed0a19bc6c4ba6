//! Counter of the bytes that the recording allocator has allocated, recorded or not.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Largest number of bytes that a thread may leave out of `LIVE`.
const PENDING_BYTES: usize = 4096;

/// Bytes that a thread has not added to `LIVE` yet.
struct Pending(Cell<isize>);

impl Drop for Pending {
    /// Adds the bytes of a thread that ends.
    fn drop(&mut self) {
        add(self.0.get());
    }
}

thread_local! {
    // The allocator may use it: the standard library registers its destructor without the global allocator (since Rust 1.93).
    static PENDING: Pending = const { Pending(Cell::new(0)) };
}

/// Returns `true` if the program runs on the recording allocator.
pub(crate) fn is_counting() -> bool {
    let before = LIVE.load(Ordering::Relaxed);
    let probe = std::hint::black_box(Vec::<u8>::with_capacity(2 * PENDING_BYTES));
    let after = LIVE.load(Ordering::Relaxed);
    drop(probe);
    before != after
}

/// Returns the bytes in use, up to a few KB for each thread.
pub(super) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Returns the peak of the bytes in use since the last call.
pub(crate) fn take_peak() -> usize {
    PEAK.swap(LIVE.load(Ordering::Relaxed), Ordering::Relaxed)
}

/// Adds the pending bytes of this thread to `LIVE`.
pub(super) fn flush_pending() {
    let pending = PENDING.try_with(|pending| pending.0.replace(0));
    add(pending.unwrap_or(0));
}

/// Adds to the bytes in use. A thread first collects small amounts, because an atomic addition for each would slow down
/// a training step.
#[inline]
pub(super) fn count(change: isize) {
    let counted = PENDING.try_with(|Pending(pending)| {
        let sum = pending.get() + change;
        let small = sum.unsigned_abs() < PENDING_BYTES;
        pending.set(if small { sum } else { 0 });
        if small { 0 } else { sum }
    });
    // After the destructor of the thread.
    let change = counted.unwrap_or(change);
    if change != 0 {
        add(change);
    }
}

#[inline]
fn add(change: isize) {
    let before = LIVE.fetch_add(change as usize, Ordering::Relaxed);
    PEAK.fetch_max(before.wrapping_add_signed(change), Ordering::Relaxed);
}
