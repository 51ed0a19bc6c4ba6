//! A slot owns the value of one trainable parameter while its model is in fused form.
//!
//! Attaching moves every value into a slot and leaves a placeholder in the module; reading the
//! parameter asks the slot; restoring puts the values back into an ordinary module.

mod attach;
mod form;
mod gradient;
mod handle;
mod inventory;
mod parameter;
mod placeholder;
mod restore;
mod statistics;
mod tracked;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

pub(crate) use form::FusedForm;
pub(crate) use inventory::{Inventory, Role};
pub(crate) use statistics::Statistics;
pub(crate) use tracked::{is_in_training, leaves, with_constants, with_own_leaves};

/// A slot, whatever the rank of its parameter.
pub(crate) trait Slot: Debug + Send + Sync {
    /// Path of the parameter in the module.
    fn path(&self) -> &str;

    /// Shows the value to a memory recorder.
    fn show(&self);

    /// Uses what was accumulated, if there is something and no gradient arrived in this pass.
    fn flush(&self);

    /// Whether there is an accumulated gradient.
    fn has_accumulated(&self) -> bool;

    /// Lets go of the autodiff graph and says what happened in this pass.
    fn end(&self) -> SlotReport;

    /// Forgets the accumulated gradient.
    fn drop_accumulated(&self);

    /// The optimizer has another state: keeps the old value through the next update, which that has not
    /// tried yet, and forgets a group of gradients that had begun in the state before.
    fn expect_first_update(&self);

    /// For downcasting to the rank of the parameter.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What happened to one parameter in a pass.
#[derive(Clone, Debug)]
pub(crate) struct SlotReport {
    /// A gradient arrived.
    pub(crate) received: bool,
    /// The optimizer stepped the parameter.
    pub(crate) updated: bool,
    /// Someone else held the value, so it was copied to be updated. None if the backend can't
    /// tell.
    pub(crate) copied: Option<bool>,
    /// A gradient arrived, and a hook kept it from being used.
    pub(crate) vetoed: bool,
}

impl SlotReport {
    fn new(tells_owners: bool) -> Self {
        Self {
            received: false,
            updated: false,
            copied: tells_owners.then_some(false),
            vetoed: false,
        }
    }
}
