use std::alloc::{GlobalAlloc, Layout, System};

use super::counter;
use super::events::{self, Event};

/// A global allocator that counts its bytes, and reports each allocation to a [`MemoryRecorder`](crate::MemoryRecorder)
/// during a recording.
///
/// ```
/// use backburn_memory::RecordingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
/// # fn main() {}
/// ```
///
/// Without a recording, an allocation and its release cost about ten nanoseconds more, for a counter of the thread and
/// an atomic addition every few KB.
#[derive(Debug, Default)]
pub struct RecordingAllocator<A = System> {
    inner: A,
}

impl RecordingAllocator {
    /// Creates an allocator over that of the operating system.
    pub const fn new() -> Self {
        Self { inner: System }
    }
}

impl<A> RecordingAllocator<A> {
    /// Creates an allocator over another one.
    pub const fn over(inner: A) -> Self {
        Self { inner }
    }
}

// SAFETY: every call is forwarded to `inner`, a `GlobalAlloc`, with unchanged arguments and result, so
// the contract holds as it does for `inner`. The events of a call are counted with atomics and a
// thread-local cell, whose destructor the standard library registers without this allocator (since Rust 1.93), and written to
// memory from `System`: this neither reenters nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for RecordingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `inner`.
        let pointer = unsafe { self.inner.alloc(layout) };
        report_allocated(pointer, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is that of `inner`.
        let pointer = unsafe { self.inner.alloc_zeroed(layout) };
        report_allocated(pointer, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Reported before, so that no other thread reports the same address first.
        report_freed(pointer, layout.size());
        // SAFETY: the caller got `pointer` from this allocator with `layout`, and so from `inner`.
        unsafe { self.inner.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        report_freed(pointer, layout.size());
        // SAFETY: the caller got `pointer` from this allocator with `layout`, and so from `inner`,
        // and keeps the contract of `realloc` on `size`.
        let moved = unsafe { self.inner.realloc(pointer, layout, size) };
        if moved.is_null() {
            report_allocated(pointer, layout.size());
            return moved;
        }
        report_allocated(moved, size)
    }
}

#[inline]
fn report_allocated(pointer: *mut u8, size: usize) -> *mut u8 {
    if !pointer.is_null() {
        counter::count(size as isize);
        let address = pointer as usize;
        events::note(Event::Allocated { address, size });
    }
    pointer
}

#[inline]
fn report_freed(pointer: *mut u8, size: usize) {
    counter::count(-(size as isize));
    let address = pointer as usize;
    events::note(Event::Freed { address, size });
}
