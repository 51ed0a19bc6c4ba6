#![doc = include_str!("../README.md")]
//!
//! # Categories of memory
//!
//! The recorder counts every byte of Rust's global allocator, on all threads, in four categories:
//!
//! - *parameters* and *gradients*: the buffers of tensors that were reported to the recorder as such.
//!   A fused optimizer reports its own; a stock loop reports them with
//!   [`parameters`](MemoryRecorder::parameters) and [`gradients`](MemoryRecorder::gradients). A
//!   buffer counts from its allocation, so a complete gradient counts from the moment it was
//!   computed.
//! - *optimizer state*: memory that was allocated during an update, outlives it, and is no parameter.
//! - *rest*: everything else: activations, intermediates, autodiff's bookkeeping, data, and memory
//!   allocated before the recording.
//!
//! The recorder finds the buffers of `flex` and `ndarray` tensors.
//!
//! # On a device
//!
//! The tensors of CubeCL's backends (`wgpu`, `cuda`, ..) are in memory pools of the device.
//! [`MemoryRecorder::start_on`] reads the pools at the start of every phase, including every update, and at each
//! gradient: bytes in use, and bytes reserved, which include unused pages. No allocator needs to be installed. The
//! pools don't report the use of the bytes (they are [`unassigned`](Bytes::unassigned)), nor allocations that were
//! freed between two readings; only the reserved bytes show those. A reading does not wait for the device, only for the
//! submission of operations, and flushes the pending operations of `fusion`. So training is a little slower while it is
//! recorded, and may use slightly different memory.
//!
//! # Modules
//!
//! Modules import downwards only. No module depends on the training, which reports to the recorder.
//!
//! | module | content |
//! |---|---|
//! | `metric` | a metric of Burn's training display with the peak of `process` |
//! | `recorder` | the current recording, which passes reports to `process` or `marks` |
//! | `marks` | the bytes at every mark, in the memory pools of a device or in the process |
//! | `process` | every allocation of the program |
//! | `block_run` | the moments of a checkpointed block, for both |
//! | `plot` | plots of a timeline |
//! | `timeline` | the recorded data, and its files |
//! | `error` | errors |
//!
//! `heap` and `size_match` are separate: they configure the heap of the process and the pools of devices, and record nothing.

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block_run;
mod error;
mod heap;
mod marks;
#[cfg(feature = "train")]
mod metric;
#[cfg(feature = "plot")]
pub mod plot;
mod process;
mod recorder;
#[cfg(feature = "cubecl")]
mod size_match;
mod timeline;

pub use error::MemoryError;
pub use heap::keep_pages;
#[cfg(feature = "train")]
pub use metric::PeakMemoryMetric;
pub use process::RecordingAllocator;
pub use recorder::MemoryRecorder;
#[cfg(feature = "cubecl")]
pub use size_match::match_pool_sizes;
#[cfg(feature = "cubecl")]
#[doc(hidden)]
pub use size_match::recommend_size_match;
pub use timeline::{
    Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, RecomputedBlock, Sample,
};

#[doc(hidden)]
pub use block_run::BlockRun;
#[doc(hidden)]
pub use marks::Limit;
#[doc(hidden)]
pub use process::Category;
#[doc(hidden)]
pub use recorder::{
    Growth, end_beyond_limit, enter, enter_block, enter_recomputation, enter_update, growth_of,
    is_recording, live, note_block, note_gradient, report_use,
};
