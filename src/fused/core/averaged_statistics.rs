//! Averages of running statistics.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};

use crate::optim::{Average, WeightAveragingConfig};
use crate::parameters::{
    AnyTensor, Parameter, exchange, list, running_statistics, values, with_own_statistics,
};
use crate::policy::{AverageKeeper, statistic_id};
use crate::weights::KeptStatistics;

/// The averages of the running statistics of a model, in a row each; none if they are not averaged.
#[derive(Default)]
pub(super) struct AveragedStatistics(HashMap<ParamId, OfOne>);

struct OfOne {
    /// In records, by its path: the statistic of a loaded model keeps an id of its own.
    id: ParamId,
    average: Average,
}

impl AveragedStatistics {
    /// Averages those of `module` from now on, if `config` says so; goes on with what there is. Returns the ids under which
    /// records have held those that are elsewhere now, or gone.
    pub(super) fn average<M: Module>(
        &mut self,
        config: Option<&Arc<WeightAveragingConfig>>,
        module: &M,
    ) -> Vec<ParamId> {
        let mut before = std::mem::take(&mut self.0);
        let mut left = Vec::new();
        if let Some(config) = config.filter(|config| config.running_statistics) {
            let all = running_statistics(module);
            for Parameter { param, path, .. } in list(module) {
                if !all.contains(&param.id()) {
                    continue;
                }
                let id = statistic_id(&path);
                let before = before.remove(&param.id());
                left.extend(before.iter().map(|it| it.id).filter(|was| *was != id));
                let average = Average::new(config, before.map(|it| it.average));
                self.0.insert(param.id(), OfOne { id, average });
            }
        }
        left.extend(before.into_values().map(|gone| gone.id));
        left
    }

    /// Those that another training goes on with.
    pub(super) fn split(&self) -> Self {
        let all = self.0.iter().map(|(statistic, OfOne { id, average })| {
            let (id, average) = (*id, average.split());
            (*statistic, OfOne { id, average })
        });
        Self(all.collect())
    }

    /// They belong to other statistics.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Takes note of the statistics of `module` after an update.
    pub(super) fn update<M: Module>(&self, module: &M) {
        if self.0.is_empty() {
            return;
        }
        // Burn keeps updates aside: they are merged to be looked at, and aside again.
        let _kept = KeptStatistics::of(module);
        for (id, value) in values(module, &self.0.keys().copied().collect()) {
            self.0[&id].average.update(&in_a_row(value).into());
        }
    }

    /// A model in training with the averages, in statistics of its own.
    pub(super) fn in_place_of<M: Module>(&self, module: M) -> M {
        if self.0.is_empty() {
            return module;
        }
        let _kept = KeptStatistics::of(&module);
        self.put_in(with_own_statistics(module))
    }

    /// `module`, which shares its statistics with no other, with the averages.
    pub(super) fn put_in<M: Module>(&self, module: M) -> M {
        exchange(
            module,
            |param| self.0.contains_key(&param.id()),
            |id, value| match self.0[&id].average.mean(value.dtype()) {
                Some(mean) => value.replaced_by(mean.untyped().reshape(value.shape())),
                None => value,
            },
        )
    }

    /// Lets `optimizer` hold none under these ids, since others may have them now.
    pub(super) fn forget_in(optimizer: &mut ModuleOptimizer, left: &[ParamId], device: &Device) {
        for id in left {
            AverageKeeper::exchange(optimizer, *id, 1, None, device);
        }
    }

    /// Lets `optimizer`, which has a place for averages, hold them; they take over what it has loaded.
    pub(super) fn keep_in(&self, optimizer: &mut ModuleOptimizer, device: &Device) {
        for OfOne { id, average } in self.0.values() {
            AverageKeeper::exchange(optimizer, *id, 1, Some(average.state()), device);
        }
    }
}

fn in_a_row(value: AnyTensor) -> Tensor<1> {
    let value = value.untyped().inner();
    let elements = value.shape().num_elements();
    value.reshape([elements])
}
