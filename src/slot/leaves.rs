//! The parameters of a block that stay ordinary leaves, for a block that runs twice.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Reparameterization};
use burn::tensor::Tensor;

use super::handle::SlotHandle;
use crate::tap::lift;

/// The parameters of `module`, which is in fused form, that are trained and have no slot.
pub(crate) fn leaves<M: Module>(module: &M) -> Vec<ParamId> {
    let mut find = Find::default();
    module.visit(&mut find);
    find.0
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

#[derive(Default)]
struct Find(Vec<ParamId>);

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        if container_type == "Reparameterization" && name == SlotHandle::NAME {
            self.0.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.base().is_tracked() {
            self.0.push(param.id);
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
