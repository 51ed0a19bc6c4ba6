//! Recording of the memory of the process.
//!
//! The global [`allocator`] always reports to the [`counter`], and to [`events`] while their [`log`] is active.
//! Reporting a tensor is an event too; [`buffer`] finds its memory. When a recording ends, [`uses`] follows every
//! allocation through the events, and [`replay`] builds the timeline.

mod allocator;
mod buffer;
mod counter;
mod events;
mod log;
mod replay;
mod uses;

use burn::tensor::Tensor;

use events::Event;

pub use allocator::RecordingAllocator;
pub(super) use counter::{is_counting, take_peak};
pub use events::Category;
pub(super) use log::ProcessLog;

/// Returns the bytes in use, with the pending bytes of this thread.
pub(super) fn live() -> usize {
    counter::flush_pending();
    counter::live()
}

/// Reports the use of the buffer of `tensor`.
pub(super) fn report_use<const D: usize>(category: Category, tensor: &Tensor<D>) {
    if let Some((address, size)) = buffer::buffer(tensor) {
        events::note(Event::Used {
            address,
            size,
            category,
        });
    }
}
