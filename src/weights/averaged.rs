//! The mean of running statistics over replicas.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use super::placeholder::Identity;
use crate::device::moved;
use crate::parameters::{AnyTensor, exchange, merge_pending, running_statistics, values};
use crate::tap::node;

/// The running statistics that every one of several replicas has of its own.
#[derive(Debug, Default)]
pub(crate) struct RunningStatistics(HashSet<ParamId>);

/// Those of one replica at a moment.
pub(crate) struct Look(HashMap<ParamId, AnyTensor>);

impl RunningStatistics {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        Self(running_statistics(module))
    }

    pub(crate) fn look<M: Module>(&self, replica: &M) -> Look {
        Look(values(replica, &self.0))
    }

    /// Gives all `replicas` the mean of what those have that have updated a statistic since they were looked at, in
    /// their order: so does Burn where threads share them. Those without a look have updated none.
    pub(crate) fn average<M: Module>(&self, replicas: &[(&M, Option<Look>)]) {
        if self.0.is_empty() {
            return;
        }
        // Each on the device of the first replica that has updated it, and how many have.
        let mut sums = HashMap::<ParamId, (AnyTensor, usize)>::new();
        for (module, before) in replicas {
            let Some(Look(before)) = before else {
                continue;
            };
            merge_pending(*module);
            for (id, value) in values(*module, &self.0) {
                if before.get(&id).is_none_or(|before| is_same(before, &value)) {
                    continue;
                }
                let value = value.untyped().inner();
                let added = match sums.remove(&id) {
                    Some((sum, replicas)) => {
                        let value = moved(value, &sum.device());
                        (sum.untyped().add(value).into(), replicas + 1)
                    }
                    None => (value.into(), 1),
                };
                sums.insert(id, added);
            }
        }
        for (module, _) in replicas {
            drop(exchange(
                (*module).clone(),
                |param| sums.contains_key(&param.id()),
                |id, value| {
                    let (sum, replicas) = &sums[&id];
                    let sum = sum.clone().untyped();
                    value.replaced_by(sum.div_scalar(*replicas as f64))
                },
            ));
        }
    }
}

/// Whether nobody has put `after` in the place of `before`, though it were of the same value: a mapper makes another node of
/// what it leaves as it is, and not all backends tell where elements lie.
fn is_same(before: &AnyTensor, after: &AnyTensor) -> bool {
    let of_both = node(before).zip(node(after));
    of_both.is_some_and(|(before, after)| before == after)
        || Identity::of::<1>(before).is_surely(&Identity::of::<1>(after))
}
