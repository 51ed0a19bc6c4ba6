#![doc = include_str!("../README.md")]
//!
//! # What is counted, and as what
//!
//! Every byte that Rust's global allocator hands out, on all threads, in four categories:
//!
//! - *parameters* and *gradients*: the buffers of tensors that were shown to the recorder as such.
//!   A fused optimizer shows its own; a stock loop shows them with
//!   [`parameters`](MemoryRecorder::parameters) and [`gradients`](MemoryRecorder::gradients). A
//!   buffer counts from its birth, so a gradient shown when it is finished counts from the moment
//!   it was computed.
//! - *optimizer state*: what was allocated during an update, outlives it, and is no parameter.
//! - *rest*: everything else: activations, intermediates, autodiff's bookkeeping, data, and whatever
//!   the program held before.
//!
//! The buffers of `flex` and `ndarray` tensors are known.
//!
//! # On a device
//!
//! The tensors of CubeCL's backends (`wgpu`, `cuda`, ..) lie in memory pools of the device.
//! [`MemoryRecorder::start_on`] reads the figures of the pools at the begin of every phase, so of
//! every update too, and when a gradient comes: bytes in use, and bytes reserved, which include pages kept for later. No
//! allocator needs to be installed. What the pools don't tell is said so, not guessed: what the bytes
//! are used for (they are [`unassigned`](Bytes::unassigned)), and what came and went between two
//! readings; only the reserved bytes keep a trace of that. A reading does not wait for the device, only for
//! what was submitted to be handed to it, and makes `fusion` hand over what it has gathered, so training is a
//! little slower while it is recorded, and may use memory a little otherwise than unrecorded.
//!
//! # The rooms
//!
//! Each knows some of those below it, and none above. What trains is known to none: it tells the recorder what it does.
//!
//! | room | what it knows |
//! |---|---|
//! | `metric` | Burn's training display; asks `process` for the peak |
//! | `recorder` | the one recording under way; hands on to `process` or `marks` what it is told |
//! | `marks` | the bytes at every mark: in the memory pools of a device, or of the process |
//! | `process` | every allocation of the program |
//! | `block_run` | the moments of a recomputed block, for both |
//! | `plot` | pictures of a timeline |
//! | `timeline` | what was recorded, and what is saved of it |
//! | `file` | how something is saved: whole, or not at all |
//! | `error` | what can go wrong |
//!
//! `heap` and `size_match` stand beside them: they change what the heap of the process and the pools of devices keep, and record nothing.

#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block_run;
mod error;
mod file;
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
    Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Pool, RecomputedBlock, Sample,
};

#[doc(hidden)]
pub use block_run::BlockRun;
#[doc(hidden)]
pub use marks::Limit;
#[doc(hidden)]
pub use process::Category;
#[doc(hidden)]
pub use recorder::{
    end_beyond_limit, enter, enter_block, enter_dry_run, enter_second_run, enter_update, go_back,
    is_recording, leave_second_run, left_by, live, most_during, note_gradient, show,
};
