use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};

use super::attach::attach;
use super::inventory::{Inventory, Role};
use super::placeholder::hollow;
use super::restore::restore;
use super::{Slot, SlotReport};
use crate::error::FusedError;
use crate::pass::Pass;

/// A module in fused form: its trainable values are in slots.
pub(crate) struct FusedForm<M> {
    /// Reads of its parameters go to the slots.
    pub(crate) module: M,
    /// The ordinary module, with placeholders for the trainable values.
    hollow: M,
    inventory: Inventory,
    slots: HashMap<ParamId, Arc<dyn Slot>>,
}

impl<M: Module> FusedForm<M> {
    /// Brings `module` into fused form, or says why it can't be.
    pub(crate) fn new(module: M, pass: &Arc<Pass>) -> Result<Self, FusedError> {
        let inventory = Inventory::take(&module)?;
        let hollow = hollow(module.clone(), &inventory);
        let (module, slots) = attach(module, &inventory, pass);
        Ok(Self {
            module,
            hollow,
            inventory,
            slots,
        })
    }

    /// The ordinary module with the current values, which it shares with the slots.
    pub(crate) fn ordinary(&self) -> M {
        let hollow = self.hollow.clone();
        restore(hollow, &self.module, &self.inventory, &self.slots)
    }

    /// The ordinary module without its trainable values.
    #[cfg(feature = "train")]
    pub(crate) fn hollow(&self) -> M {
        self.hollow.clone()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<dyn Slot>> {
        self.slots.values()
    }

    /// The number of parameters in training.
    pub(crate) fn trained(&self) -> usize {
        self.slots.len() + self.inventory.count(Role::Retained).0
    }

    /// Ends the pass in every slot.
    pub(crate) fn end(&self) -> Vec<(ParamId, SlotReport)> {
        let slots = self.slots.iter();
        slots.map(|(id, slot)| (*id, slot.end())).collect()
    }

    /// The path of a parameter that has a slot.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        self.slots[&id].path()
    }
}
