use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

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
