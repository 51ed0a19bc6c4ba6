//! A model and its optimizer in training, stock or fused.

use anyhow::Result;
use backburn::{Checkpoint, FusedConfig, FusedError, FusedOptimizer, Progress};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{LanguageModel, Losses};

const BETWEEN_STEPS: &str = "there is a model between steps";

/// A model in training.
#[allow(clippy::large_enum_variant)] // There is one.
pub enum Trainer {
    Stock {
        /// `None` during a step.
        model: Option<LanguageModel>,
        optimizer: ModuleOptimizer,
    },
    Fused {
        fused: FusedOptimizer<LanguageModel>,
        /// Number of micro-batches in a step.
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

    /// Starts fused training on `device`, with the model there or on the host.
    pub fn fused(
        model: LanguageModel,
        optimizer: ModuleOptimizer,
        config: FusedConfig,
        device: &Device,
    ) -> Result<Self, FusedError> {
        let fused = FusedOptimizer::new(model, optimizer)?.with_config_on(config, device)?;
        Ok(Self::Fused { fused, parts: 1 })
    }

    /// Trains on a batch, `[batch, context + 1]`, and returns its cross entropy in nats per token.
    pub fn step(
        &mut self,
        batch: Tensor<2, Int>,
        learning_rate: f64,
    ) -> Result<Tensor<1>, FusedError> {
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
                Ok(cross_entropy)
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
                let mut before: Option<Tensor<1>> = None;
                for batch in batches {
                    let entropy = fused.accumulate(losses(batch))?.1;
                    before = Some(match before {
                        Some(sum) => sum + entropy,
                        None => entropy,
                    });
                }
                let entropy = fused.step(learning_rate, losses(last))?.1;
                Ok(match before {
                    Some(before) => (before + entropy) / parts as f32,
                    None => entropy,
                })
            }
        }
    }

    /// Returns the model for a checkpoint.
    pub fn model(&self) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.clone().expect(BETWEEN_STEPS),
            Self::Fused { fused, .. } => fused.model(),
        }
    }

    /// Returns the model for inference on `device`; with an average of the weights, if there is one.
    pub fn valid(&self, device: &Device) -> LanguageModel {
        match self {
            Self::Stock { model, .. } => model.as_ref().expect(BETWEEN_STEPS).valid(),
            Self::Fused { fused, .. } if fused.config().averaging.is_some() => {
                // With offload the average is on the host.
                fused.averaged().valid().to_device(&device.clone().inner())
            }
            Self::Fused { fused, .. } => fused.valid(),
        }
    }

    /// Saves the training between two steps. A stock training is converted to a fused one for this, which changes nothing.
    pub fn save<P>(&self, checkpoint: &Checkpoint, progress: &Progress<P>) -> Result<()>
    where
        P: Serialize + DeserializeOwned,
    {
        match self {
            Self::Stock { optimizer, .. } => {
                let fused = FusedOptimizer::new(self.model(), optimizer.clone())?;
                checkpoint.save(&fused, progress)?;
            }
            Self::Fused { fused, .. } => checkpoint.save(fused, progress)?,
        }
        Ok(())
    }

    /// Resumes the saved training of this trainer.
    pub fn resume<P>(self, checkpoint: &Checkpoint) -> Result<(Self, Progress<P>)>
    where
        P: DeserializeOwned,
    {
        match self {
            Self::Stock { model, optimizer } => {
                let model = model.expect(BETWEEN_STEPS);
                let mut fused = FusedOptimizer::new(model, optimizer)?;
                let progress = checkpoint.load(&mut fused)?;
                let (model, optimizer) = fused.into_parts();
                Ok((Self::stock(model, optimizer), progress))
            }
            Self::Fused { mut fused, parts } => {
                let progress = checkpoint.load(&mut fused)?;
                Ok((Self::Fused { fused, parts }, progress))
            }
        }
    }
}
