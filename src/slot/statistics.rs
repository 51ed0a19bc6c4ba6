use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{GradientCheckpointingStrategy, Shape, Tensor};

use crate::device::moved;
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

/// The running statistics that every one of several replicas has of its own.
#[derive(Debug, Default)]
pub(crate) struct RunningStatistics(HashSet<ParamId>);

impl RunningStatistics {
    /// Those of `module`: what a mapper changes in a clone changes in it, too, since clones share them.
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut statistics = Collect::default();
        module.visit(&mut statistics);
        let mut mark = Mark::default();
        if !statistics.0.is_empty() {
            drop(module.clone().map(&mut mark));
            module.visit(&mut mark);
            drop(module.clone().map(&mut PutBack(statistics.0)));
        }
        Self(mark.found)
    }

    /// Gives all `replicas` the mean of those that have been updated, in their order: so does Burn where threads share
    /// them.
    pub(crate) fn average<M: Module>(&self, replicas: &[(&M, bool)]) {
        if self.0.is_empty() {
            return;
        }
        let mut sum = Sum {
            statistics: &self.0,
            replicas: 0,
            sums: HashMap::new(),
        };
        for (module, _) in replicas.iter().filter(|(_, is_updated)| *is_updated) {
            merge_pending(*module);
            module.visit(&mut sum);
            sum.replicas += 1;
        }
        for (module, _) in replicas {
            drop((*module).clone().map(&mut Mean(&sum)));
        }
    }
}

/// Puts something of another shape in the place of all that is not tracked, and looks where it is found.
#[derive(Default)]
struct Mark {
    shapes: HashMap<ParamId, Shape>,
    found: HashSet<ParamId>,
}

impl ModuleMapper for Mark {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D == 0 || param.base().is_tracked() {
            return param;
        }
        let (id, value, mapper) = param.consume();
        self.shapes.insert(id, value.shape());
        // Small, since frozen weights are among them.
        let size = if value.dims() == [1; D] { 2 } else { 1 };
        let other = Tensor::zeros([size; D], (&value.device(), value.dtype()));
        Param::from_mapped_value(id, other, mapper)
    }
}

impl ModuleVisitor for Mark {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = self.shapes.get(&param.id);
        if shape.is_some_and(|shape| *shape != param.base().shape()) {
            self.found.insert(param.id);
        }
    }
}

/// The sums of statistics over replicas, on the device of the first.
struct Sum<'a> {
    statistics: &'a HashSet<ParamId>,
    replicas: usize,
    sums: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleVisitor for Sum<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.statistics.contains(&param.id) {
            return;
        }
        let value = param.base().inner();
        let sum = self.sums.remove(&param.id);
        let sum = match sum.map(|sum| sum.downcast::<Tensor<D>>()) {
            Some(Ok(sum)) => {
                let device = sum.device();
                sum.add(moved(value, &device))
            }
            _ => value,
        };
        self.sums.insert(param.id, Box::new(sum));
    }
}

/// Puts the means in.
struct Mean<'a>(&'a Sum<'a>);

impl ModuleMapper for Mean<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let sum = self.0.sums.get(&param.id);
        let Some(sum) = sum.and_then(|sum| sum.downcast_ref::<Tensor<D>>()) else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let mean = sum.clone().div_scalar(self.0.replicas as f64);
        let mean = moved(mean, &value.device().inner());
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        Param::from_mapped_value(id, lift(mean, strategy), mapper)
    }
}
