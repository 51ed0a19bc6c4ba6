//! A model and its optimizer in training, stock or fused.

use anyhow::{Context, Result};
use backburn::{FusedConfig, FusedOptimizer};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::prelude::*;
use burn::store::ModuleRecord;

use crate::model::{LanguageModel, Losses};

const BETWEEN_STEPS: &str = "there is a model between steps";

/// A model in training.
#[allow(clippy::large_enum_variant)] // There is one.
pub enum Trainer {
    Stock {
        /// None during a step.
        model: Option<LanguageModel>,
        optimizer: ModuleOptimizer,
    },
    Fused {
        fused: FusedOptimizer<LanguageModel>,
        /// Micro-batches in a step.
        parts: usize,
    },
}

impl Trainer {
    pub fn stock(model: LanguageModel, optimizer: ModuleOptimizer) -> Self {
        Self::Stock {
            model: Some(model),
            optimizer,
        }
    }

    /// On `device`, whether the model is there or on the host.
    pub fn fused(
        model: LanguageModel,
        optimizer: ModuleOptimizer,
        config: FusedConfig,
        device: &Device,
    ) -> Self {
        let fused = FusedOptimizer::new(model, optimizer);
        Self::Fused {
            fused: fused.with_config_on(config, device),
            parts: 1,
        }
    }

    /// Trains on a batch, `[batch, context + 1]`, and returns its cross entropy in nats per token.
    pub fn step(&mut self, batch: Tensor<2, Int>, learning_rate: f64) -> Tensor<1> {
        match self {
            Self::Stock { model, optimizer } => {
                let current = model.take().expect(BETWEEN_STEPS);
                let Losses {
                    total,
                    cross_entropy,
                } = current.losses(batch);
                let gradients = GradientsParams::from_grads(total.backward(), &current);
                drop(total);
                *model = Some(optimizer.step(learning_rate, current, gradients));
                cross_entropy
            }
            Self::Fused { fused, parts } => {
                let parts = *parts;
                let losses = |batch| {
                    move |model: &LanguageModel| {
                        let losses = model.losses(batch);
                        let total = match parts {
                            1 => losses.total,
                            _ => losses.total / parts as f32,
                        };
                        (total, losses.cross_entropy)
                    }
                };
                let mut batches = batch.chunk(parts, 0);
                let last = batches.pop().expect("a batch has a piece");
                let entropies = batches
                    .into_iter()
                    .map(|batch| fused.accumulate(losses(batch)).1);
                let before = entropies.reduce(|sum, entropy| sum + entropy);
                let entropy = fused.step(learning_rate, losses(last)).1;
                match before {
                    Some(before) => (before + entropy) / parts as f32,
                    None => entropy,
                }
            }
        }
    }

    /// The model as it is saved.
    pub fn model(&self) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.clone().expect(BETWEEN_STEPS),
            Self::Fused { fused, .. } => fused.model(),
        }
    }

    /// The model for inference.
    pub fn valid(&self) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.as_ref().expect(BETWEEN_STEPS).valid(),
            Self::Fused { fused, .. } => fused.valid(),
        }
    }

    /// The same with other weights.
    pub fn try_load(self, record: ModuleRecord) -> Result<Self> {
        Ok(match self {
            Self::Stock { model, optimizer } => {
                let model = model.expect(BETWEEN_STEPS).try_load_record(record)?;
                Self::stock(model, optimizer)
            }
            Self::Fused { mut fused, parts } => {
                let mut refused = None;
                fused.try_change_model(|model| match model.clone().try_load_record(record) {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        refused = Some(error);
                        model
                    }
                })?;
                match refused {
                    Some(error) => return Err(error.into()),
                    None => Self::Fused { fused, parts },
                }
            }
        })
    }

    /// The state of the optimizer.
    pub fn to_record(&self) -> OptimizerRecord {
        match self {
            Self::Stock { optimizer, .. } => optimizer.to_record(),
            Self::Fused { fused, .. } => fused.to_record(),
        }
    }

    pub fn load_record(&mut self, record: OptimizerRecord) -> Result<()> {
        match self {
            Self::Stock { optimizer, .. } => {
                *optimizer = optimizer.clone().load_record(record);
            }
            Self::Fused { fused, .. } => fused
                .try_load_record(record)
                .context("the state of the optimizer does not fit")?,
        }
        Ok(())
    }
}
