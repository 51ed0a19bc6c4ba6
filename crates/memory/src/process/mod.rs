//! Records the memory of the process.
//!
//! The global [`allocator`] tells two what it hands out: the [`counter`] always, and [`events`] while
//! their [`log`] runs. A tensor can be shown, which is an event, too; [`buffer`] finds its memory. When
//! a recording ends, [`uses`] follows every allocation through the events, and [`replay`] makes a timeline.

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

/// Bytes in use, with what this thread has kept to itself.
pub(super) fn live() -> usize {
    counter::settle();
    counter::live()
}

/// Tells what the buffer of `tensor` is used for.
pub(super) fn show<const D: usize>(category: Category, tensor: &Tensor<D>) {
    if let Some((address, size)) = buffer::buffer(tensor) {
        events::note(Event::Shown {
            address,
            size,
            category,
        });
    }
}

/// The most bytes in use during `work` over those before.
pub(super) fn most_during<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = live();
    counter::take_peak();
    let result = work();
    counter::settle();
    (result, counter::take_peak().saturating_sub(before))
}
