//! Running statistics of the ranks in a pass: each rank updates its own, and afterwards all ranks receive the mean.
//!
//! # Invariants
//!
//! Burn keeps the last update of a statistic pending. The next training pass merges it, and so does `Module::valid`. A frozen
//! batch normalization reads without it. A pending update can only be merged, so a pass with a closure and an export
//! merge all, and [`Deferred`] keeps the values before until a pass commits. For a layer that
//! [`Ranks::changed`] freezes, [`Deferred`] holds the update apart until `valid`.

use std::collections::{HashMap, HashSet};

use backburn_base::caught::catch_message;
use backburn_base::{AnyTensor, copy_to_device, values};
use burn::module::{Module, ParamId};
use parking_lot::MutexGuard;

use super::ranks::{Deferred, Ranks};
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::parameters::{
    Statistics, StatisticsGuard, frozen_statistics, map_params, merge_pending,
};
use crate::tap::node;
use crate::weights::{AttachedModule, Identity, Value};

impl<M: Module> Ranks<M> {
    /// Exports a module of the first rank. It has the last update of every running statistic.
    pub(super) fn export(&self, export: impl FnOnce(&AttachedModule<M>) -> M) -> M {
        let attached = self.attached();
        if self.statistics.is_empty() {
            return export(attached);
        }
        let deferred = self.keep_unmerged();
        let module = export(attached);
        deferred.of_frozen.copy_into(&module);
        module
    }

    /// Returns a module of the first rank for inference. Merges all updates of running statistics.
    pub(super) fn valid(&self, value: Value) -> M {
        let mut deferred = self.deferred.lock();
        for attached in &self.attached_modules {
            deferred.of_frozen.copy_into(&attached.skeleton);
        }
        *deferred = Deferred::default();
        drop(deferred);
        self.attached().valid(value)
    }

    /// Returns the same ranks with the result of `change`. A batch normalization that is frozen computes without the last
    /// update of its statistics, as in stock Burn.
    pub(super) fn changed(
        &self,
        change: impl FnOnce(M) -> M,
        config: &FusedConfig,
    ) -> Result<Self, FusedError> {
        let model = self.export(|it| it.export(Value::Current));
        if self.statistics.is_empty() {
            return self.with_model(change(model), config);
        }
        let mut of_frozen = Statistics::of(&model, &self.statistics);
        let mut unmerged = self.deferred.lock().unmerged.clone().unwrap_or_default();
        let model = change(model);
        let changed = Statistics::of(&model, &self.statistics);
        let is_in = |statistics: &Statistics, id, value: &AnyTensor| {
            let found = statistics.get(id);
            found.is_some_and(|found| found.to_data() == value.to_data())
        };
        // A statistic that `change` has loaded stays.
        of_frozen.retain(|id, last| is_in(&changed, id, last));
        unmerged.retain(|id, _| of_frozen.get(id).is_some());
        let frozen = frozen_statistics(&model);
        of_frozen.retain(|id, last| frozen.contains(&id) && !is_in(&unmerged, id, last));
        let mut put_back = unmerged.clone();
        put_back.retain(|id, _| of_frozen.get(id).is_some());
        put_back.copy_into(&model);
        let ranks = self.with_model(model, config)?;
        let unmerged = Some(unmerged);
        *ranks.deferred.lock() = Deferred {
            unmerged,
            of_frozen,
        };
        Ok(ranks)
    }

    /// Takes a snapshot of the running statistics of every rank. Merges all updates.
    pub(super) fn guard_statistics(&self) -> Vec<StatisticsGuard<M>> {
        drop(self.keep_unmerged());
        let attached_modules = self.attached_modules.iter();
        let guard = |module| StatisticsGuard::among(module, &self.statistics);
        attached_modules
            .map(|attached| guard(&attached.skeleton))
            .collect()
    }

    /// Keeps the statistics without the last update, before it is merged.
    fn keep_unmerged(&self) -> MutexGuard<'_, Deferred> {
        let unmerged = || Statistics::of(&self.attached().skeleton, &self.statistics);
        let mut deferred = self.deferred.lock();
        deferred.unmerged.get_or_insert_with(unmerged);
        deferred
    }

    /// Leaves the statistics as a pass has updated them since `before`. All ranks receive the mean.
    pub(super) fn commit_statistics(
        &self,
        before: Vec<StatisticsGuard<M>>,
    ) -> Result<(), FusedError> {
        if self.attached_modules.len() > 1 {
            catch_message(|| self.average(&before)).map_err(|reason| FusedError::Replicas {
                reason: format!(
                    "the running statistics of all ranks could not be averaged: {reason}"
                ),
            })?;
        }
        self.deferred.lock().unmerged = None;
        before.into_iter().for_each(StatisticsGuard::commit);
        Ok(())
    }

    /// Sets the statistics of all ranks to the mean over the ranks that have updated them since `before`, in the order of the ranks,
    /// as Burn does if threads share statistics.
    fn average(&self, before: &[StatisticsGuard<M>]) {
        // Each sum on the device of the first rank that has updated it, with the number of such ranks.
        let mut sums = HashMap::<ParamId, (AnyTensor, usize)>::new();
        // Those of frozen normalizations never change, and several may have one id.
        let frozen = frozen_statistics(&self.attached().skeleton);
        let changing: HashSet<_> = self.statistics.difference(&frozen).copied().collect();
        for (attached, guard) in self.attached_modules.iter().zip(before) {
            merge_pending(&attached.skeleton);
            for (id, value) in values(&attached.skeleton, &changing) {
                let before = guard.before.get(id);
                if before.is_some_and(|before| is_same(before, &value)) {
                    continue;
                }
                let value = value.0.inner();
                let added = match sums.remove(&id) {
                    Some((sum, ranks)) => {
                        let value = copy_to_device(value, &sum.device());
                        (sum.0.add(value).into(), ranks + 1)
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
                    let sum = sum.clone().0;
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
        || Identity::of::<1>(before).is_known_to_be(&Identity::of::<1>(after))
}
