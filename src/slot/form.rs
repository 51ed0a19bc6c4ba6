use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};

use super::attach::attach;
use super::comes_over::ComeOver;
use super::frozen;
use super::inventory::{Inventory, Role};
use super::moved::{look_at_once, moved_but_for};
use super::placeholder::hollow;
use super::restore::{Which, restore};
use super::{Slot, SlotReport};
use crate::error::FusedError;
use crate::offload::{Placement, WaitingBlocks};
use crate::pass::{Course, Pass, Session};
use crate::replica::{Group, Membership};

/// A module in fused form: its trainable values are in slots.
pub(crate) struct FusedForm<M> {
    /// Reads of its parameters go to the slots.
    pub(crate) module: M,
    /// The ordinary module, with placeholders for the trainable values.
    hollow: M,
    inventory: Inventory,
    slots: Arc<Slots>,
    placement: Option<Arc<Placement>>,
    /// The frozen parameters that wait on the host, and whether each carries an adapter.
    frozen: HashMap<ParamId, bool>,
}

/// The slots of a module.
#[derive(Debug)]
pub(crate) struct Slots(HashMap<ParamId, Arc<dyn Slot>>);

impl<M: Module> FusedForm<M> {
    /// Brings `module` into fused form, or says why it can't be.
    pub(crate) fn new(module: M, session: &Arc<Session>) -> Result<Self, FusedError> {
        let placement = session.placement();
        let member = session.membership();
        let device = member.map(Membership::device);
        let inventory = Inventory::take(&module, placement.as_deref(), device)?;
        let mut frozen = HashMap::new();
        let module = match (&placement, member) {
            (None, None) => module,
            (None, Some(member)) => {
                // The slots see to the others.
                let released = |id| inventory.role(id) == Some(Role::Released);
                let device = member.device().clone().autodiff();
                moved_but_for(module, released, &device)
            }
            (Some(placement), _) => {
                frozen = frozen::waiting(&module, &inventory, placement);
                let released = |id| inventory.role(id) == Some(Role::Released);
                let stays = |id| released(id) || frozen.contains_key(&id);
                let module = frozen::on_host(module, &frozen, placement);
                moved_but_for(module, stays, placement.device())
            }
        };
        let rests_on = placement.as_deref().map(Placement::host).or(device);
        let hollow = hollow(module.clone(), &inventory, rests_on);
        let adapted = frozen.iter().filter(|(_, has_adapter)| **has_adapter);
        let bases = adapted.filter_map(|(id, _)| Some(inventory.get(*id)?.path.clone()));
        let bases: Vec<_> = bases.collect();
        let (module, slots) = attach(module, &inventory, session, &bases);
        let module = match &placement {
            None => module,
            Some(placement) => module.apply_reparameterization(ComeOver {
                placement: placement.clone(),
                parameters: frozen.keys().copied().collect(),
            }),
        };
        Ok(Self {
            module,
            hollow,
            inventory,
            slots: Arc::new(Slots(slots)),
            placement,
            frozen,
        })
    }

    /// The ordinary module with the current values, which it shares with the slots: in host memory if something
    /// waits there.
    pub(crate) fn ordinary(&self) -> M {
        let hollow = self.hollow.clone();
        let Some(placement) = &self.placement else {
            return self.filled(hollow, Which::Rests);
        };
        let host = placement.host();
        let module = hollow.fork(&host.clone().autodiff());
        look_at_once(&module, &self.inventory);
        self.filled(module, Which::OnHost(host))
    }

    /// The ordinary module with every value where its owner has it.
    pub(crate) fn with_owners(&self) -> M {
        self.filled(self.hollow.clone(), Which::RestsWithOwner)
    }

    /// The module for inference, where it computes.
    pub(crate) fn valid(&self) -> M {
        let Some(placement) = self.placement.clone() else {
            return self.filled(self.hollow.clone(), Which::Rests).valid();
        };
        let slots = self.slots.0.iter();
        let coming = slots.filter(|(_, slot)| slot.comes_over());
        let coming = coming.map(|(id, _)| id).chain(self.frozen.keys());
        let parameters: HashSet<ParamId> = coming.copied().collect();
        let module = match self.frozen.values().any(|has_adapter| *has_adapter) {
            false => self.filled(self.hollow.clone(), Which::Computes).valid(),
            // A parameter carries an adapter, or the way to the device.
            true => {
                let merged = self.ordinary().valid().materialize();
                let device = placement.device().clone().inner();
                moved_but_for(merged, |id| parameters.contains(&id), &device)
            }
        };
        module.apply_reparameterization(ComeOver {
            placement,
            parameters,
        })
    }

    fn filled(&self, hollow: M, which: Which<'_>) -> M {
        restore(hollow, &self.module, &self.inventory, &self.slots.0, which)
    }

    /// The ordinary module without its trainable values.
    #[cfg(feature = "train")]
    pub(crate) fn hollow(&self) -> M {
        self.hollow.clone()
    }

    /// Where things are, if something waits on the host.
    pub(crate) fn placement(&self) -> Option<Arc<Placement>> {
        self.placement.clone()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub(crate) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// The number of parameters in training.
    pub(crate) fn trained(&self) -> usize {
        self.slots.0.len() + self.inventory.count(Role::Retained).0
    }

    /// The smallest parameters in training, of up to `bytes` together, whose optimizer could panic in the
    /// middle of an update.
    pub(crate) fn at_risk(&self, bytes: usize) -> Vec<ParamId> {
        let slots = self.slots.0.iter();
        let slots = slots.filter(|(_, slot)| !slot.is_written_in_place());
        let slots = slots.map(|(id, slot)| (slot.bytes(), *id));
        let retained = self.inventory.retained().into_iter().filter_map(|id| {
            let elements = self.inventory.get(id)?.elements;
            Some((elements * size_of::<f32>(), id))
        });
        let mut sizes: Vec<_> = slots.chain(retained).collect();
        sizes.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut left = bytes;
        let fitting = sizes.into_iter().map_while(|(bytes, id)| {
            left = left.checked_sub(bytes)?;
            Some(id)
        });
        fitting.collect()
    }

    /// The path of a parameter that has a slot.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        self.slots.0[&id].path()
    }
}

impl Slots {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Slot>> {
        self.0.values()
    }

    /// Bytes of all values, and so of the gradients that are released.
    #[cfg(feature = "cubecl")]
    pub(crate) fn bytes(&self) -> usize {
        self.iter().map(|slot| slot.bytes()).sum()
    }

    /// Brings a value before it is read.
    pub(super) fn fetch(&self, id: ParamId) {
        self.0[&id].fetch();
    }

    /// Whether the value comes over whenever it is read.
    pub(super) fn comes_over(&self, id: ParamId) -> bool {
        self.0[&id].comes_over()
    }

    /// Drops what was brought and not read.
    pub(super) fn let_go(&self, id: ParamId) {
        self.0[&id].let_go();
    }

    pub(super) fn copy_bytes(&self, id: ParamId) -> usize {
        self.0[&id].copy_bytes()
    }

    /// Lets the device keep the weights of the blocks that don't wait on the host.
    pub(crate) fn keep_copies(&self, course: &Course, waiting: WaitingBlocks) {
        let blocks = course.blocks();
        let coming = |id: &&ParamId| self.0[*id].comes_over();
        let bytes = blocks.iter().map(|reads| {
            let coming = reads.iter().filter(coming);
            coming.map(|id| self.copy_bytes(*id)).sum()
        });
        let stays = waiting.staying(&bytes.collect::<Vec<_>>());
        let staying = blocks.into_iter().zip(stays).filter(|(_, stays)| *stays);
        let parameters = staying.flat_map(|(reads, _)| reads);
        parameters.for_each(|id| self.0[id].keep_copy());
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not; or goes on with what has
    /// ended the pass.
    pub(crate) fn flush(&self, pass: &Arc<Pass>) -> Result<(), FusedError> {
        self.iter().for_each(|slot| slot.flush(pass));
        pass.check()
    }

    /// Ends the pass in every slot. If it has not ended `well`, what had been accumulated before is there again,
    /// but for sums that were overwritten.
    pub(crate) fn end(&self, well: bool) -> Vec<(ParamId, SlotReport)> {
        let slots = self.0.iter();
        slots.map(|(id, slot)| (*id, slot.end(well))).collect()
    }

    /// Forgets all sums, since some are lost.
    pub(crate) fn drop_overwritten(&self) {
        log::error!(
            "the backward pass of a micro-batch broke off: all accumulated gradients are dropped, \
             since some of them hold a part of it"
        );
        self.iter().for_each(|slot| slot.drop_accumulated());
    }

    /// Lets the slots of all ranks share their parameters.
    pub(crate) fn meet(ranks: &[Arc<Self>], group: &Arc<Group>) {
        let Some(first) = ranks.first() else { return };
        for (id, slot) in &first.0 {
            let slots: Vec<_> = ranks.iter().map(|slots| slots.0[id].clone()).collect();
            slot.meet(&slots, group);
        }
    }

    /// The optimizer state stays while the model changes: so do the groups that have begun in it.
    pub(crate) fn copy_groups(&self, from: &Self) {
        for (id, slot) in &self.0 {
            if from.0.get(id).is_some_and(|from| from.has_begun_group()) {
                slot.begin_group();
            }
        }
    }

    /// Takes over what the slots of another form of the same model have accumulated.
    pub(crate) fn copy_accumulated(&self, from: &Self) {
        for (id, slot) in &self.0 {
            if let Some(from) = from.0.get(id) {
                slot.copy_accumulated(from);
            }
        }
    }
}
