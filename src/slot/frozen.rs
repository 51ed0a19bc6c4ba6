//! Frozen parameters that wait on the host, and come over when they are read.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::inventory::{Inventory, Role};
use super::running::running_statistics;
use crate::device::moved;
use crate::offload::Placement;
use crate::pass::Scope;
use crate::tap::lift;

/// The frozen parameters of `module` that wait on the host, and whether each carries an adapter, which Burn lets no
/// other reparameterization replace. Running statistics never wait.
pub(super) fn waiting<M: Module>(
    module: &M,
    inventory: &Inventory,
    placement: &Placement,
) -> HashMap<ParamId, bool> {
    let mut carrying = Carrying {
        inventory,
        placement,
        statistics: running_statistics(module),
        last: None,
        found: HashMap::new(),
    };
    module.visit(&mut carrying);
    carrying.found
}

/// Refuses to read an adapter of the parameter at `base`, which waits on the host, where nothing brings it over: Burn
/// adds the two, and only a block is given the base on the device.
pub(super) fn refuse_outside_of_a_block(base: &str) {
    if !Scope::current().is_some_and(|scope| scope.is_in_block()) {
        panic!(
            "parameter `{base}` waits on the host and has an adapter, and was read outside of a block \
             under gradient checkpointing: read it in a block, leave it out of the adapter's parameter \
             group, or raise `OffloadConfig::min_elements` so that it stays on the device"
        );
    }
}

struct Carrying<'a> {
    inventory: &'a Inventory,
    placement: &'a Placement,
    statistics: HashSet<ParamId>,
    last: Option<ParamId>,
    found: HashMap<ParamId, bool>,
}

impl ModuleVisitor for Carrying<'_> {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        if let Some(id) = self.last.take()
            && container_type == "Reparameterization"
        {
            self.found.insert(id, true);
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_frozen = self.inventory.role(param.id) == Some(Role::Frozen);
        let elements = param.lazy_shape().num_elements();
        let waits = is_frozen
            && self.placement.frozen_waits(elements)
            && !self.statistics.contains(&param.id);
        self.last = waits.then_some(param.id);
        if waits {
            self.found.entry(param.id).or_insert(false);
        }
    }
}

/// `module` with these parameters on the host.
pub(super) fn on_host<M: Module>(
    module: M,
    frozen: &HashMap<ParamId, bool>,
    placement: &Placement,
) -> M {
    module.map(&mut SendHome { frozen, placement })
}

struct SendHome<'a> {
    frozen: &'a HashMap<ParamId, bool>,
    placement: &'a Placement,
}

impl ModuleMapper for SendHome<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.frozen.contains_key(&param.id) {
            true => exchanged(param, |value| moved(value, self.placement.host())),
            false => param,
        }
    }
}

/// `param`, which is not tracked, with what `change` makes of its value without autodiff.
fn exchanged<const D: usize>(
    param: Param<Tensor<D>>,
    change: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    let (id, value, mapper) = param.consume();
    let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
    let value = lift(change(value.inner()), strategy);
    Param::from_mapped_value(id, value, mapper)
}

/// `module` with all that waits on the host, and is not in training, on the device: what a block computes with in
/// one run.
pub(crate) fn with_frozen<M: Module>(module: M, placement: &Placement) -> M {
    module.map(&mut Bring(placement))
}

struct Bring<'a>(&'a Placement);

impl ModuleMapper for Bring<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.base();
        if value.is_tracked() || value.device().inner() != *self.0.host() {
            return param;
        }
        drop(value);
        exchanged(param, |value| self.0.over(value))
    }
}
