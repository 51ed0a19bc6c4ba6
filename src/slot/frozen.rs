//! Frozen parameters that wait on the host, and come over when they are read.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::comes_over::ComeOver;
use super::inventory::{Inventory, Role};
use crate::device::moved;
use crate::offload::Placement;
use crate::tap::lift;

/// The frozen parameters of `module` that wait on the host, and whether each carries an adapter, which Burn lets no
/// other reparameterization replace. Running statistics never wait.
pub(super) fn waiting<M: Module>(
    module: &M,
    inventory: &Inventory,
    placement: &Arc<Placement>,
) -> HashMap<ParamId, bool> {
    let waits = |elements| placement.frozen_waits(elements);
    let found = inventory.with_role(Role::Frozen);
    let parameters = found.filter(|(_, elements)| waits(*elements));
    let parameters = parameters.map(|(id, _)| id).collect();
    // Only what is a parameter shows what it is given to carry.
    let probe = module.clone().apply_reparameterization(ComeOver {
        placement: placement.clone(),
        parameters,
    });
    let mut carrying = Carrying {
        inventory,
        placement,
        last: None,
        found: HashMap::new(),
    };
    probe.visit(&mut carrying);
    carrying.found
}

struct Carrying<'a> {
    inventory: &'a Inventory,
    placement: &'a Placement,
    last: Option<ParamId>,
    found: HashMap<ParamId, bool>,
}

impl ModuleVisitor for Carrying<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if let Some(id) = self.last.take()
            && container_type == "Reparameterization"
        {
            self.found.insert(id, name != ComeOver::NAME);
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_frozen = self.inventory.role(param.id) == Some(Role::Frozen);
        let waits = || {
            self.placement
                .frozen_waits(param.lazy_shape().num_elements())
        };
        self.last = (is_frozen && waits()).then_some(param.id);
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
