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
    Fused(FusedOptimizer<LanguageModel>),
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
        Self::Fused(fused.with_config_on(config, device))
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
            Self::Fused(fused) => {
                let losses = |model: &LanguageModel| {
                    let losses = model.losses(batch);
                    (losses.total, losses.cross_entropy)
                };
                fused.step(learning_rate, losses).1
            }
        }
    }

    /// The model as it is saved.
    pub fn model(&self) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.clone().expect(BETWEEN_STEPS),
            Self::Fused(fused) => fused.model(),
        }
    }

    /// The model for inference.
    pub fn valid(&self) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.as_ref().expect(BETWEEN_STEPS).valid(),
            Self::Fused(fused) => fused.valid(),
        }
    }

    /// The same with other weights.
    pub fn try_load(self, record: ModuleRecord) -> Result<Self> {
        Ok(match self {
            Self::Stock { model, optimizer } => {
                let model = model.expect(BETWEEN_STEPS).try_load_record(record)?;
                Self::stock(model, optimizer)
            }
            Self::Fused(mut fused) => {
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
                    None => Self::Fused(fused),
                }
            }
        })
    }

    /// The state of the optimizer.
    pub fn to_record(&self) -> OptimizerRecord {
        match self {
            Self::Stock { optimizer, .. } => optimizer.to_record(),
            Self::Fused(fused) => fused.to_record(),
        }
    }

    pub fn load_record(&mut self, record: OptimizerRecord) -> Result<()> {
        match self {
            Self::Stock { optimizer, .. } => {
                *optimizer = optimizer.clone().load_record(record);
            }
            Self::Fused(fused) => fused
                .try_load_record(record)
                .context("the state of the optimizer does not fit")?,
        }
        Ok(())
    }
}
