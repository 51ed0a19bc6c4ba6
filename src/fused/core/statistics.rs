//! Running statistics of the ranks in a pass: each rank updates its own, and afterwards all ranks receive the mean.

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use super::ranks::Ranks;
use crate::device::{caught, copy_to_device};
use crate::error::FusedError;
use crate::parameters::{AnyTensor, StatisticsGuard, map_params, merge_pending, values};
use crate::tap::node;
use crate::weights::Identity;

impl<M: Module> Ranks<M> {
    /// Takes a snapshot of the running statistics of every rank.
    pub(super) fn guard_statistics(&self) -> Vec<StatisticsGuard<M>> {
        let attached_modules = self.attached_modules.iter();
        let guard = |module| StatisticsGuard::among(module, &self.statistics);
        attached_modules
            .map(|attached| guard(&attached.skeleton))
            .collect()
    }

    /// Sets the statistics of all ranks to the mean over the ranks that have updated them since `before`.
    pub(super) fn average_statistics(
        &self,
        before: &[StatisticsGuard<M>],
    ) -> Result<(), FusedError> {
        if self.attached_modules.len() == 1 {
            return Ok(());
        }
        caught(|| self.average(before)).map_err(|reason| FusedError::Replicas {
            reason: format!("the running statistics of all ranks could not be averaged: {reason}"),
        })
    }

    /// Averages in the order of the ranks, as Burn does if threads share statistics.
    fn average(&self, before: &[StatisticsGuard<M>]) {
        // Each sum on the device of the first rank that has updated it, with the number of such ranks.
        let mut sums = HashMap::<ParamId, (AnyTensor, usize)>::new();
        for (attached, guard) in self.attached_modules.iter().zip(before) {
            merge_pending(&attached.skeleton);
            for (id, value) in values(&attached.skeleton, &self.statistics) {
                let before = guard.before.get(id);
                if before.is_some_and(|before| is_same(before, &value)) {
                    continue;
                }
                let value = value.untyped().inner();
                let added = match sums.remove(&id) {
                    Some((sum, ranks)) => {
                        let value = copy_to_device(value, &sum.device());
                        (sum.untyped().add(value).into(), ranks + 1)
                    }
                    None => (value.into(), 1),
                };
                sums.insert(id, added);
            }
        }
        for attached in &self.attached_modules {
            drop(map_params(
                attached.skeleton.clone(),
                |param| sums.contains_key(&param.id()),
                |id, value| {
                    let (sum, ranks) = &sums[&id];
                    let sum = sum.clone().untyped();
                    value.replaced_by(sum.div_scalar(*ranks as f64))
                },
            ));
        }
    }
}

/// Returns `true` if `after` is the same tensor as `before`, not only equal. A mapper creates new nodes for unchanged
/// tensors, and not all backends expose addresses.
fn is_same(before: &AnyTensor, after: &AnyTensor) -> bool {
    let of_both = node(before).zip(node(after));
    of_both.is_some_and(|(before, after)| before == after)
        || Identity::of::<1>(before).is_surely(&Identity::of::<1>(after))
}
