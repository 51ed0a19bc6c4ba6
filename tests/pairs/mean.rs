//! Averages of weights and of running statistics, by formula.

use std::collections::HashMap;

use backburn::{WeightAverage, WeightAveragingConfig};
use burn::module::{Module, ParamId};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::model::Model;
use crate::rows::{Put, known};

/// The averages of a model.
#[derive(Default)]
pub struct Means {
    config: Option<WeightAveragingConfig>,
    of_weights: HashMap<ParamId, Mean>,
    of_statistics: Vec<Mean>,
}

impl Means {
    /// They begin as `config` says, if there are any.
    pub fn new(config: Option<WeightAveragingConfig>) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// These parameters of `model` have been `updated`.
    pub fn take(&mut self, model: &Model, updated: &[ParamId]) {
        let Some(config) = &self.config else {
            return;
        };
        let parts = &config.parameters;
        for known in known(model) {
            let is_covered = parts.is_empty() || parts.iter().any(|part| known.path.contains(part));
            if is_covered && updated.contains(&known.id) {
                let full = match known.dtype {
                    DType::F64 => FloatDType::F64,
                    _ => FloatDType::F32,
                };
                let mean = self.of_weights.entry(known.id).or_default();
                mean.take(config, known.value.cast(full));
            }
        }
        if config.running_statistics && !updated.is_empty() {
            let statistics = model.statistics();
            self.of_statistics.resize(statistics.len(), Mean::default());
            for (mean, now) in self.of_statistics.iter_mut().zip(statistics) {
                mean.take(config, now);
            }
        }
    }

    /// `model` with the averages of what is in training, and its running statistics.
    pub fn put_in(&self, model: &Model) -> (Model, Vec<Tensor<1>>) {
        let trained = known(model).into_iter().filter(|known| known.is_trained);
        let means = trained.filter_map(|known| {
            let mean = self.of_weights.get(&known.id)?.mean.clone();
            Some((known.id, mean?))
        });
        let averaged = model.clone().map(&mut Put(means.collect()));
        let statistics = model.statistics().into_iter().enumerate();
        let statistics = statistics.map(|(index, now)| {
            let mean = self.of_statistics.get(index);
            mean.and_then(|mean| mean.mean.clone()).unwrap_or(now)
        });
        (averaged, statistics.collect())
    }
}

/// An average, of how many values after how many updates.
#[derive(Clone, Default)]
struct Mean {
    updates: usize,
    count: usize,
    mean: Option<Tensor<1>>,
}

impl Mean {
    fn take(&mut self, config: &WeightAveragingConfig, value: Tensor<1>) {
        self.updates += 1;
        let after = self.updates.checked_sub(config.start + 1);
        if !after.is_some_and(|after| after.is_multiple_of(config.every)) {
            return;
        }
        let n = self.count as f64;
        self.mean = Some(match (self.mean.take(), config.average) {
            (None, _) => value,
            (Some(mean), WeightAverage::Uniform) => mean.clone() + (value - mean) / (n + 1.0),
            (Some(mean), WeightAverage::Exponential(decay)) => {
                let warm = (1.0 + n) / (10.0 + n);
                let decay = if config.warm_up {
                    decay.min(warm)
                } else {
                    decay
                };
                mean * decay + value * (1.0 - decay)
            }
        });
        self.count += 1;
    }
}
