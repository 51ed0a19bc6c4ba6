//! A slot owns the value of one trainable parameter while its model is in fused form.
//!
//! Attaching moves every value into a slot and leaves a placeholder in the module; reading the
//! parameter asks the slot; restoring puts the values back into an ordinary module.

mod any_rank;
mod arrival;
mod attach;
mod averaged;
mod comes_over;
mod foresight;
mod form;
mod frozen;
mod gradient;
mod handle;
mod home;
mod inventory;
mod kept_statistics;
mod leaves;
mod meeting;
mod moved;
mod parameter;
mod placeholder;
mod read;
mod report;
mod restore;
mod seen_states;
mod slots;
mod stage;
mod states;
mod tracked;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod unreadable;

pub(crate) use any_rank::Slot;
pub(crate) use averaged::RunningStatistics;
pub(crate) use foresight::FetchAhead;
pub(crate) use form::FusedForm;
pub(crate) use frozen::with_frozen;
pub(crate) use inventory::{Inventory, Role};
pub(crate) use kept_statistics::KeptStatistics;
pub(crate) use report::SlotReport;
pub(crate) use seen_states::SeenStates;
pub(crate) use slots::Slots;
pub(crate) use tracked::{
    OwnLeaf, TrackedTensor, Unused, is_in_training, own_leaf, slotless, with_constants,
    with_own_leaves,
};
