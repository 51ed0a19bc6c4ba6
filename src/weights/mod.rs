//! The weights of a model while it is in fused form.
//!
//! Attaching moves the value of every trainable parameter to its *home*, which all ranks share, and leaves a placeholder
//! in the module; reading the parameter asks the *view* that the rank has of it; restoring puts the values back into an
//! ordinary module. What rests where, and what a view holds, says the [`Layout`](crate::layout::Layout).

mod arrival;
mod attach;
mod come_over;
mod copy;
mod entry;
mod fetch_ahead;
mod form;
mod frozen;
mod handle;
mod home;
mod inventory;
mod moved;
mod placeholder;
mod read;
mod restored;
mod saved_in_full;
mod stage;
mod tracked;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod unreadable;
mod update;
mod view;
mod views;

pub(crate) use entry::{Entry, Role};
pub(crate) use form::FusedForm;
pub(crate) use frozen::with_frozen;
pub(crate) use home::Home;
pub(crate) use inventory::Inventory;
pub(crate) use moved::forked_in_codes;
pub(crate) use placeholder::Identity;
pub(crate) use restored::Value;
pub(crate) use stage::{Accumulated, ParameterReport};
pub(crate) use tracked::{
    OwnLeaf, TrackedTensor, Unused, is_in_training, outside_of_form, own_leaf, with_constants,
    with_own_leaves,
};
pub(crate) use views::Views;
