use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ParamId};

use super::attach::attach;
use super::comes_over::ComeOver;
use super::frozen;
use super::inventory::{Inventory, Role};
use super::leaves;
use super::moved::{look_at_once, moved_but_for};
use super::parameter::Which;
use super::placeholder::hollow;
use super::restore::restore;
use super::slots::Slots;
use crate::error::FusedError;
use crate::offload::Placement;
use crate::pass::Session;
use crate::replica::Membership;

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
        let mut adapters = inventory.adapters(adapted.map(|(id, _)| *id));
        let (module, slots) = attach(module, &inventory, session, &adapters);
        adapters.retain(|id, _| inventory.role(*id) == Some(Role::Frozen));
        let module = match &placement {
            None => module,
            Some(placement) => module.apply_reparameterization(ComeOver {
                placement: placement.clone(),
                parameters: frozen.keys().copied().collect(),
                adapters,
            }),
        };
        Ok(Self {
            module,
            hollow,
            inventory,
            slots: Arc::new(slots),
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
        let frozen = self.frozen.keys().copied();
        let parameters: HashSet<ParamId> = self.slots.coming_over().chain(frozen).collect();
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
            adapters: HashMap::new(),
        })
    }

    fn filled(&self, hollow: M, which: Which<'_>) -> M {
        restore(hollow, &self.slots, which)
    }

    /// Lets go of the values of its leaves: their slots are the only owners then, and step them in place.
    pub(crate) fn let_go_of_leaves(&mut self) {
        self.module = leaves::let_go(self.module.clone(), &self.slots);
    }

    /// Gives its leaves the values that their slots have now.
    pub(crate) fn renew_leaves(&mut self) {
        self.module = leaves::renewed(self.module.clone(), &self.slots);
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
        self.slots.len()
    }

    /// The path of a parameter that has a slot.
    pub(crate) fn path(&self, id: ParamId) -> &str {
        self.slots.get(id).path()
    }
}
