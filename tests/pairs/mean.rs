//! Averages of weights, by formula.

use std::collections::HashMap;

use crate::model::Model;
use crate::rows::{Put, known};

use crate::common::*;

/// The averages of a model, which start as its weights.
pub struct Means {
    config: WeightAveragingConfig,
    means: HashMap<ParamId, Mean>,
}

struct Mean {
    updates: usize,
    mean: Tensor<1>,
}

fn in_full(value: Tensor<1>) -> Tensor<1> {
    match value.dtype() {
        DType::F64 => value,
        _ => value.cast(FloatDType::F32),
    }
}

impl Means {
    pub fn new(config: WeightAveragingConfig, model: &Model) -> Self {
        let start = |value| Mean {
            updates: 0,
            mean: in_full(value),
        };
        let means = known(model).into_iter();
        let means = means.map(|known| (known.id, start(known.value))).collect();
        Self { config, means }
    }

    /// Adds the values of the `updated` parameters of `model`.
    pub fn take(&mut self, model: &Model, updated: &[ParamId]) {
        for known in known(model) {
            if updated.contains(&known.id) {
                let mean = self.means.get_mut(&known.id).expect("it was there");
                mean.take(&self.config, in_full(known.value));
            }
        }
    }

    /// Returns `model` with the averages of its trained parameters.
    pub fn put_in(&self, model: &Model) -> Model {
        let trained = known(model).into_iter().filter(|known| known.is_trained);
        let means = trained.map(|known| (known.id, self.means[&known.id].mean.clone()));
        model.clone().map(&mut Put(means.collect()))
    }
}

impl Mean {
    fn take(&mut self, config: &WeightAveragingConfig, value: Tensor<1>) {
        self.updates += 1;
        if !self.updates.is_multiple_of(config.every) {
            return;
        }
        let n = (self.updates / config.every) as f64;
        let mean = self.mean.clone();
        self.mean = match config.decay {
            Some(decay) => {
                let warm = (1.0 + n) / (10.0 + n);
                let decay = if config.warm_up {
                    decay.min(warm)
                } else {
                    decay
                };
                mean * decay + value * (1.0 - decay)
            }
            None if n == 1.0 => value,
            None => mean.clone() + (value - mean) / n,
        };
    }
}
