use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use crate::tap::lift;

/// Burn keeps the last update of a statistic aside until it is read or the module is taken for
/// validation.
pub(super) fn merge_pending<M: Module>(module: &M) {
    drop(module.valid());
}

/// `module` with running statistics of its own, which clones would share.
pub(crate) fn with_own_statistics<M: Module>(module: M) -> M {
    let mut strategies = Strategies::default();
    module.visit(&mut strategies);
    // Burn copies them only where it leaves autodiff, and what comes back has its default strategy.
    module.valid().train().map(&mut strategies)
}

#[derive(Default)]
struct Strategies(HashMap<ParamId, GradientCheckpointingStrategy>);

impl ModuleVisitor for Strategies {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(strategy) = param.base().gradient_checkpointing_strategy() {
            self.0.insert(param.id, strategy);
        }
    }
}

impl ModuleMapper for Strategies {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(strategy) = self.0.get(&param.id) else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let requires_grad = value.is_require_grad();
        let value = lift(value.inner(), *strategy).set_require_grad(requires_grad);
        Param::from_mapped_value(id, value, mapper)
    }
}
