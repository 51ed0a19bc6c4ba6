//! Techniques that train with less memory.

use backburn::optim as ours;
use backburn::{FusedConfig, FusedError, Plan, PlanError, WeightAveragingConfig};
use burn::prelude::*;
use clap::ValueEnum;

use crate::backend::Backend;
use crate::formats::Formats;
use crate::model::LanguageModelConfig;
use crate::offload::Waiting;
use crate::optimizer::Optimizer;
use crate::trainer::Trainer;

/// Tokens whose logits are in memory at a time.
pub const LOSS_CHUNK: usize = 256;

/// Training technique; each needs less memory than the one before.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// Burn's optimizer after the backward pass.
    Stock,
    /// The optimizer fused into the backward pass.
    Fused,
    /// Fused, with Burn's `gradient_checkpointing()`.
    Balanced,
    /// Fused, with the layers as checkpointed blocks.
    Block,
    /// Like `block`, with the loss in chunks of tokens. It equals Burn's up to rounding.
    Chunked,
}

/// Device, offload, formats and optimizer of a training, and the decay of an average of the weights.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub backend: Backend,
    pub offload: Option<Waiting>,
    pub formats: Formats,
    pub optimizer: Optimizer,
    pub ema: Option<f64>,
}

impl Default for Place {
    /// Everything on the CPU, in f32, with AdamW.
    fn default() -> Self {
        Self {
            backend: Backend::Flex,
            offload: None,
            formats: Formats::default(),
            optimizer: Optimizer::default(),
            ema: None,
        }
    }
}

/// Returns an average of the weights that forgets the first steps.
fn averaging(decay: f64) -> WeightAveragingConfig {
    WeightAveragingConfig::new()
        .with_decay(Some(decay))
        .with_warm_up(true)
}

impl Technique {
    /// Returns the compute device, which is also the device of the batches.
    pub fn device(self, place: Place) -> Device {
        let device = place.backend.device().autodiff();
        match self {
            Self::Balanced => device.gradient_checkpointing(),
            _ => device,
        }
    }

    /// Returns `config` with the changes of this technique.
    pub fn applied_to(self, config: &LanguageModelConfig) -> LanguageModelConfig {
        let recomputes = matches!(self, Self::Block | Self::Chunked);
        let config = config.clone().with_recompute_layers(recomputes);
        match self {
            Self::Chunked => config.with_loss_chunk(Some(LOSS_CHUNK)),
            _ => config,
        }
    }

    /// Starts a training of the model of `config`.
    pub fn start(self, config: &LanguageModelConfig, place: Place) -> Result<Trainer, FusedError> {
        let config = self.applied_to(config);
        let device = self.device(place);
        // An offloaded model is created on the host.
        let model = match (self, place.offload) {
            (Self::Stock, _) | (_, None) => config.init(&device),
            (_, Some(_)) => config.init(&self.device(Place::default())),
        };
        let model = place.formats.cast(model)?;
        let optimizer = place.optimizer.init(place.formats);
        if self == Self::Stock {
            return Ok(Trainer::stock(model, optimizer));
        }
        let config = FusedConfig::new()
            .with_offload(place.offload.map(Waiting::config))
            .with_averaging(place.ema.map(averaging));
        Trainer::fused(model, optimizer, config, &device)
    }

    /// Returns `true` if a planner can choose the layers to recompute.
    pub fn can_be_planned(self) -> bool {
        matches!(self, Self::Block | Self::Chunked)
    }

    /// Starts a planned training.
    pub fn start_planned(
        self,
        config: &LanguageModelConfig,
        plan: &Plan<ours::AdamWConfig>,
        place: Place,
    ) -> Result<Trainer, PlanError> {
        let (config, device) = (self.applied_to(config), self.device(place));
        Ok(Trainer::Fused {
            fused: plan.fuse(|| config.init(&device))?,
            parts: plan.accumulation,
        })
    }
}
