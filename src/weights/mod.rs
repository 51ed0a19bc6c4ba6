//! The weights of a model while it is attached to a training.
//!
//! Attaching moves the value of every trainable parameter to its *master*, which all ranks share, and leaves a
//! placeholder in the module. A read of the parameter calls the *local parameter* of the rank. Exporting puts the
//! values into an ordinary module. The [`RankContext`](crate::placement::RankContext) decides where values are stored
//! and how a rank computes with them.
//!
//! # A parameter in a pass
//!
//! 1. [`Handle::apply`](handle::Handle) redirects a read of the module's parameter to `LocalParam::read`, which taps the
//!    value of the master, or its compute copy.
//! 2. The tap passes the gradient of each use to [`TapSink::receive`](tap_sink::TapSink). When none is pending,
//!    `LocalParam` reports the sum to the master.
//! 3. When all ranks have reported, they are summed, and `MasterParam::apply_gradients` calls hooks and steps the value.
//! 4. At the end of the pass, `LocalParams::end` commits or rolls back each master, and updates or drops the compute copies.

mod applied;
mod attach;
mod attached_module;
mod copy;
mod entry;
mod entry_checks;
mod fetch_on_read;
mod frozen;
mod gradient_state;
mod handle;
mod inventory;
mod local_param;
mod local_params;
mod master_param;
mod placeholder;
mod prefetcher;
mod read;
mod reduce;
mod saved_in_full;
mod tap_sink;
mod tracked;
mod transfer;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod unreadable;
mod update;

pub(crate) use attached_module::AttachedModule;
pub(crate) use entry::{Entry, Role};
pub(crate) use frozen::with_frozen;
pub(crate) use gradient_state::{Accumulated, ParameterReport};
pub(crate) use inventory::{Inventory, initialize};
pub(crate) use local_param::Value;
pub(crate) use local_params::LocalParams;
pub(crate) use master_param::MasterParam;
pub(crate) use placeholder::Identity;
pub(crate) use tracked::{
    OwnLeaf, TrackedTensor, Unused, is_for_inference, is_in_stock_training, is_in_training,
    own_leaf, tracked_and_not_attached, with_constants, with_own_leaves,
};
pub(crate) use transfer::fork_quantized;
