//! A slot owns the value of one trainable parameter while its model is in fused form.
//!
//! Attaching moves every value into a slot and leaves a placeholder in the module; reading the
//! parameter asks the slot; restoring puts the values back into an ordinary module.

mod any_rank;
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

pub(crate) use any_rank::{Slot, SlotReport};
pub(crate) use foresight::FetchAhead;
pub(crate) use form::{FusedForm, Slots};
pub(crate) use frozen::with_frozen;
pub(crate) use inventory::{Inventory, Role};
pub(crate) use statistics::{KeptStatistics, RunningStatistics, with_own_statistics};
pub(crate) use tracked::{
    OwnLeaf, TrackedTensor, Unused, is_in_training, own_leaf, slotless, with_constants,
    with_own_leaves,
};
