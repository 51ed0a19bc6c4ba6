//! The parameters of a block that are trained: those that have a slot, and those that stay ordinary leaves.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Reparameterization};
use burn::tensor::Tensor;

use super::handle::SlotHandle;
use crate::tap::lift;

/// Whether `module`, or a part of it, is in fused form, and not for inference.
pub(crate) fn is_in_training<M: Module>(module: &M) -> bool {
    let mut tracked = tracked(module).into_iter();
    tracked.any(|(_, has_slot)| has_slot)
}

/// The parameters of `module`, which is in fused form, that are trained and have no slot.
pub(crate) fn leaves<M: Module>(module: &M) -> Vec<ParamId> {
    let tracked = tracked(module).into_iter();
    let leaves = tracked.filter(|(_, has_slot)| !has_slot);
    leaves.map(|(id, _)| id).collect()
}

/// `module` with these parameters as leaves of a graph of their own.
pub(crate) fn with_own_leaves<M: Module>(module: M, leaves: &[ParamId]) -> M {
    renewed(module, leaves, true)
}

/// `module` with these parameters as constants.
pub(crate) fn with_constants<M: Module>(module: M, leaves: &[ParamId]) -> M {
    renewed(module, leaves, false)
}

fn renewed<M: Module>(module: M, leaves: &[ParamId], tracked: bool) -> M {
    match leaves.is_empty() {
        true => module,
        false => module.map(&mut Renew { leaves, tracked }),
    }
}

/// The parameters of `module` that are tracked, and whether they have a slot.
fn tracked<M: Module>(module: &M) -> Vec<(ParamId, bool)> {
    let mut tracked = Tracked::default();
    module.visit(&mut tracked);
    tracked.found
}

#[derive(Default)]
struct Tracked {
    found: Vec<(ParamId, bool)>,
    /// Whether the last parameter is among them.
    last: bool,
}

impl ModuleVisitor for Tracked {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        let is_slot = container_type == "Reparameterization" && name == SlotHandle::NAME;
        if let Some((_, has_slot)) = self.found.last_mut().filter(|_| is_slot && self.last) {
            *has_slot = true;
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.last = param.base().is_tracked();
        if self.last {
            self.found.push((param.id, false));
        }
    }
}

struct Renew<'a> {
    leaves: &'a [ParamId],
    tracked: bool,
}

impl ModuleMapper for Renew<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.leaves.contains(&param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let constant = lift(value.inner(), strategy);
        let value = match self.tracked {
            true => constant.require_grad(),
            false => constant,
        };
        Param::from_mapped_value(id, value, mapper)
    }
}
