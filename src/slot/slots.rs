use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::GradientsParams;

use super::{Slot, SlotReport};
use crate::error::FusedError;
use crate::offload::WaitingBlocks;
use crate::pass::{Course, Pass};
use crate::replica::Group;

/// The slots of a module.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    of: HashMap<ParamId, Arc<dyn Slot>>,
    /// The parameters that are ordinary leaves, in module order.
    leaves: Vec<ParamId>,
}

impl Slots {
    pub(super) fn add(&mut self, id: ParamId, slot: Arc<dyn Slot>) {
        self.of.insert(id, slot);
    }

    /// That of a parameter that is an ordinary leaf.
    pub(super) fn add_leaf(&mut self, id: ParamId, slot: Arc<dyn Slot>) {
        self.leaves.push(id);
        self.add(id, slot);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Slot>> {
        self.of.values()
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn get(&self, id: ParamId) -> &Arc<dyn Slot> {
        &self.of[&id]
    }

    /// Whether the parameter has a slot.
    pub(super) fn has(&self, id: ParamId) -> bool {
        self.of.contains_key(&id)
    }

    /// The parameters that are ordinary leaves, in module order.
    pub(super) fn leaves(&self) -> &[ParamId] {
        &self.leaves
    }

    /// The parameters whose values come over whenever they are read.
    pub(super) fn coming_over(&self) -> impl Iterator<Item = ParamId> {
        let coming = self.of.iter().filter(|(_, slot)| slot.comes_over());
        coming.map(|(id, _)| *id)
    }

    /// Bytes of all values, and so of the gradients that are released.
    #[cfg(feature = "cubecl")]
    pub(crate) fn bytes(&self) -> usize {
        self.iter().map(|slot| slot.bytes()).sum()
    }

    /// Brings a value before it is read.
    pub(super) fn fetch(&self, id: ParamId) {
        self.of[&id].fetch();
    }

    /// Whether the value comes over whenever it is read.
    pub(super) fn comes_over(&self, id: ParamId) -> bool {
        self.of[&id].comes_over()
    }

    /// Drops what was brought and not read.
    pub(super) fn let_go(&self, id: ParamId) {
        self.of[&id].let_go();
    }

    pub(super) fn copy_bytes(&self, id: ParamId) -> usize {
        self.of[&id].copy_bytes()
    }

    /// Lets the device keep the weights of the blocks that don't wait on the host.
    pub(crate) fn keep_copies(&self, course: &Course, waiting: WaitingBlocks) {
        let blocks = course.blocks();
        let coming = |id: &&ParamId| self.of[*id].comes_over();
        let bytes = blocks.iter().map(|reads| {
            let coming = reads.iter().filter(coming);
            coming.map(|id| self.copy_bytes(*id)).sum()
        });
        let stays = waiting.staying(&bytes.collect::<Vec<_>>());
        let staying = blocks.into_iter().zip(stays).filter(|(_, stays)| *stays);
        let parameters = staying.flat_map(|(reads, _)| reads);
        parameters.for_each(|id| self.of[id].keep_copy());
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not; or goes on with what has
    /// ended the pass.
    pub(crate) fn flush(&self, pass: &Arc<Pass>) -> Result<(), FusedError> {
        let released = self.of.iter().filter(|(id, _)| !self.leaves.contains(id));
        released.for_each(|(_, slot)| slot.flush(pass));
        pass.check()
    }

    /// Delivers the gradients of the parameters that are ordinary leaves, in module order, and uses them.
    pub(crate) fn deliver(&self, pass: &Arc<Pass>, mut gradients: GradientsParams) {
        let leaves = self.leaves.iter().map(|id| &self.of[id]);
        leaves.for_each(|slot| slot.deliver(pass, &mut gradients));
    }

    /// Ends the pass in every slot. If it has not ended `well`, what had been accumulated before is there again,
    /// but for sums that were overwritten.
    pub(crate) fn end(&self, well: bool) -> Vec<(ParamId, SlotReport)> {
        let slots = self.of.iter();
        slots.map(|(id, slot)| (*id, slot.end(well))).collect()
    }

    /// The path of a parameter whose sum of gradients was overwritten by a pass that has not ended well; of several,
    /// the first by name.
    pub(crate) fn lost_accumulated(&self) -> Option<&str> {
        let lost = self.iter().filter(|slot| slot.has_lost_accumulated());
        lost.map(|slot| slot.path()).min()
    }

    /// Lets the slots of all ranks share their parameters.
    pub(crate) fn meet(ranks: &[Arc<Self>], group: &Arc<Group>) {
        let Some(first) = ranks.first() else { return };
        for (id, slot) in &first.of {
            let slots: Vec<_> = ranks.iter().map(|slots| slots.of[id].clone()).collect();
            slot.meet(&slots, group);
        }
    }

    /// The optimizer state stays while the model changes: so do the groups that have begun in it.
    pub(crate) fn copy_groups(&self, from: &Self) {
        for (id, slot) in &self.of {
            if from.of.get(id).is_some_and(|from| from.has_begun_group()) {
                slot.begin_group();
            }
        }
    }

    /// Takes over what the slots of another form of the same model have accumulated.
    pub(crate) fn copy_accumulated(&self, from: &Self) {
        for (id, slot) in &self.of {
            if let Some(from) = from.of.get(id) {
                slot.copy_accumulated(from);
            }
        }
    }
}
