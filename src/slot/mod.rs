//! A slot owns the value of one trainable parameter while its model is in fused form.
//!
//! Attaching moves every value into a slot and leaves a placeholder in the module; reading the
//! parameter asks the slot; restoring puts the values back into an ordinary module.

mod arrival;
mod attach;
mod comes_over;
mod foresight;
mod form;
mod frozen;
mod gradient;
mod handle;
mod home;
mod inventory;
mod meeting;
mod moved;
mod parameter;
mod placeholder;
mod read;
mod restore;
mod stage;
mod statistics;
mod tracked;
#[cfg(feature = "flex")]
mod unreadable;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

pub(crate) use foresight::FetchAhead;
pub(crate) use form::{FusedForm, Slots};
pub(crate) use frozen::with_frozen;
pub(crate) use inventory::{Inventory, Role};
pub(crate) use moved::forked;
pub(crate) use statistics::{KeptStatistics, RunningStatistics, with_own_statistics};
pub(crate) use tracked::{
    OwnLeaf, TrackedTensor, Unused, is_in_training, own_leaf, slotless, with_constants,
    with_own_leaves,
};

use crate::device::Written;
use crate::pass::Pass;
use crate::replica::Group;

/// A slot, whatever the rank of its parameter.
pub(crate) trait Slot: Debug + Send + Sync {
    /// Path of the parameter in the module.
    fn path(&self) -> &str;

    /// Shows the value to a memory recorder.
    fn show(&self);

    /// Uses what has come and what was accumulated, as far as the backward pass has not.
    fn flush(&self, pass: &Arc<Pass>);

    /// Asks whether the device has computed the value.
    fn ask_written(&self, written: &mut Written);

    /// Whether the value comes over from the host for every use, and the device keeps no copy.
    fn comes_over(&self) -> bool;

    /// Brings a value that comes over to the device before it is read.
    fn fetch(&self);

    /// Drops what was brought and not read.
    fn let_go(&self);

    /// Lets the device keep its copy of a value that comes over.
    fn keep_copy(&self);

    /// Bytes of what the device computes with.
    fn copy_bytes(&self) -> usize;

    /// Bytes of the value.
    fn bytes(&self) -> usize;

    /// Whether the optimizer has last written in place, which it does only where nothing can go wrong.
    fn is_written_in_place(&self) -> bool;

    /// Whether there is an accumulated gradient.
    fn has_accumulated(&self) -> bool;

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    fn accumulated_is_finite(&self) -> bool;

    /// Lets go of the autodiff graph and says what happened in this pass. If it ended `well`, what it has
    /// accumulated counts; if not, what had been accumulated before it does.
    fn end(&self, well: bool) -> SlotReport;

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    fn drop_accumulated(&self);

    /// The optimizer has another state: forgets all that was accumulated, there too.
    fn forget_group(&self);

    /// Whether the optimizer state holds gradients of a group that has not ended.
    fn has_begun_group(&self) -> bool;

    /// The optimizer state holds such gradients.
    fn begin_group(&self);

    /// Lets this slot and those of the other ranks share their parameter: `slots` has one a rank.
    fn meet(&self, slots: &[Arc<dyn Slot>], group: &Arc<Group>);

    /// Takes over what another slot has accumulated.
    fn copy_accumulated(&self, from: &Arc<dyn Slot>);

    /// For downcasting to the rank of the parameter.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What happened to one parameter in a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotReport {
    /// A gradient arrived.
    pub(crate) received: bool,
    /// The optimizer stepped the parameter.
    pub(crate) updated: bool,
    /// Someone else held the value, so it was copied to be updated. None if the backend can't tell, or
    /// there was no update.
    pub(crate) copied: Option<bool>,
    /// A gradient arrived, and a hook kept it from being used.
    pub(crate) vetoed: bool,
    /// The sum of gradients was overwritten by a new one.
    pub(crate) overwritten: bool,
}

impl SlotReport {
    /// What happened to it on two ranks together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            received: self.received || other.received,
            updated: self.updated || other.updated,
            copied: self.copied.or(other.copied),
            vetoed: self.vetoed || other.vetoed,
            overwritten: self.overwritten || other.overwritten,
        }
    }
}
