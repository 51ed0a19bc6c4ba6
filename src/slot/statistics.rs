use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use crate::tap::lift;

/// What a forward pass changes in a module: the running statistics of its normalization layers, as
/// they were at a moment.
struct Statistics {
    values: HashMap<ParamId, Box<dyn Any>>,
}

impl Statistics {
    /// The statistics of `module` now.
    fn of<M: Module>(module: &M) -> Self {
        let mut statistics = Collect::default();
        module.visit(&mut statistics);
        if !statistics.0.is_empty() {
            merge_pending(module);
            module.visit(&mut statistics);
        }
        Self {
            values: statistics.0,
        }
    }

    fn put_back<M: Module>(&mut self, module: &M) {
        if !self.values.is_empty() {
            merge_pending(module);
            // The clones of a module share its statistics.
            drop(
                module
                    .clone()
                    .map(&mut PutBack(std::mem::take(&mut self.values))),
            );
        }
    }
}

/// Puts the statistics of a module back as they were, when dropped.
pub(crate) struct KeptStatistics<M: Module> {
    module: M,
    statistics: Statistics,
}

impl<M: Module> KeptStatistics<M> {
    pub(crate) fn of(module: &M) -> Self {
        Self {
            module: module.clone(),
            statistics: Statistics::of(module),
        }
    }

    /// Leaves the statistics as they have become.
    pub(crate) fn forget(mut self) {
        self.statistics.values.clear();
    }
}

impl<M: Module> Drop for KeptStatistics<M> {
    fn drop(&mut self) {
        self.statistics.put_back(&self.module);
    }
}

/// Burn keeps the last update of a statistic aside until it is read or the module is taken for
/// validation.
fn merge_pending<M: Module>(module: &M) {
    drop(module.valid());
}

#[derive(Default)]
struct Collect(HashMap<ParamId, Box<dyn Any>>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Frozen parameters are among them; putting them back changes nothing.
        let value = param.base();
        if !value.is_tracked() {
            self.0.insert(param.id, Box::new(value));
        }
    }
}

struct PutBack(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for PutBack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.remove(&param.id);
        match value.map(|value| value.downcast::<Tensor<D>>()) {
            Some(Ok(value)) => {
                let (id, _changed, mapper) = param.consume();
                Param::from_mapped_value(id, *value, mapper)
            }
            _ => param,
        }
    }
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
