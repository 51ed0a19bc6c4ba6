//! The mean of running statistics over replicas.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::placeholder::Identity;
use super::running::running_statistics;
use super::statistics::merge_pending;
use crate::device::moved;
use crate::tap::{lift, node};

/// The running statistics that every one of several replicas has of its own.
#[derive(Debug, Default)]
pub(crate) struct RunningStatistics(HashSet<ParamId>);

/// Those of one replica at a moment.
pub(crate) struct Look(HashMap<ParamId, Box<dyn Any>>);

impl RunningStatistics {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        Self(running_statistics(module))
    }

    pub(crate) fn look<M: Module>(&self, replica: &M) -> Look {
        let mut values = Values {
            statistics: &self.0,
            found: HashMap::new(),
        };
        if !self.0.is_empty() {
            replica.visit(&mut values);
        }
        Look(values.found)
    }

    /// Gives all `replicas` the mean of what those have that have updated a statistic since they were looked at, in
    /// their order: so does Burn where threads share them. Those without a look have updated none.
    pub(crate) fn average<M: Module>(&self, replicas: &[(&M, Option<Look>)]) {
        if self.0.is_empty() {
            return;
        }
        let mut sums = HashMap::new();
        for (module, before) in replicas {
            if let Some(before) = before {
                merge_pending(*module);
                let sums = &mut sums;
                module.visit(&mut Add { before, sums });
            }
        }
        for (module, _) in replicas {
            drop((*module).clone().map(&mut Mean(&sums)));
        }
    }
}

struct Values<'a> {
    statistics: &'a HashSet<ParamId>,
    found: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.statistics.contains(&param.id) {
            self.found.insert(param.id, Box::new(param.base()));
        }
    }
}

/// Whether nobody has put `after` in the place of `before`, though it were of the same value: a mapper makes another node of
/// what it leaves as it is, and not all backends tell where elements lie.
fn is_same<const D: usize>(before: &Tensor<D>, after: &Tensor<D>) -> bool {
    let of_both = node(before).zip(node(after));
    of_both.is_some_and(|(before, after)| before == after)
        || Identity::of(before).is_surely(&Identity::of(after))
}

/// The sums of statistics, each on the device of the first replica that has updated it, and how many have.
type Sums = HashMap<ParamId, (Box<dyn Any>, usize)>;

/// Adds what a replica has updated since it was looked at.
struct Add<'a> {
    before: &'a Look,
    sums: &'a mut Sums,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let before = self.before.0.get(&param.id);
        let Some(before) = before.and_then(|before| before.downcast_ref::<Tensor<D>>()) else {
            return;
        };
        let value = param.base();
        if is_same(before, &value) {
            return;
        }
        let value = value.inner();
        let (sum, replicas) = match self.sums.remove(&param.id) {
            Some((sum, replicas)) => {
                let sum = sum.downcast::<Tensor<D>>();
                let sum = *sum.expect("a statistic has the same rank in every replica");
                let device = sum.device();
                (sum.add(moved(value, &device)), replicas + 1)
            }
            None => (value, 1),
        };
        self.sums.insert(param.id, (Box::new(sum), replicas));
    }
}

/// Puts the means in.
struct Mean<'a>(&'a Sums);

impl ModuleMapper for Mean<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((sum, replicas)) = self.0.get(&param.id) else {
            return param;
        };
        let Some(sum) = sum.downcast_ref::<Tensor<D>>() else {
            return param;
        };
        let (id, value, mapper) = param.consume();
        let mean = sum.clone().div_scalar(*replicas as f64);
        let mean = moved(mean, &value.device().inner());
        let mean = match value.gradient_checkpointing_strategy() {
            Some(strategy) => lift(mean, strategy),
            None => mean,
        };
        Param::from_mapped_value(id, mean, mapper)
    }
}
