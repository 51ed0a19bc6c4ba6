//! Ways to train with less memory.

use backburn::optim as ours;
use backburn::{FusedConfig, GradientCheckpointingConfig, Plan};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::prelude::*;
use clap::ValueEnum;

use crate::backend::Backend;
use crate::formats::Formats;
use crate::model::LanguageModelConfig;
use crate::offload::Waiting;
use crate::trainer::Trainer;

/// How the model is trained; each way needs less than the one before.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// Burn's optimizer after the backward pass.
    Stock,
    /// The optimizer fused into the backward pass.
    Fused,
    /// Fused, with Burn's `gradient_checkpointing()`.
    Balanced,
    /// Fused, with the layers recomputed.
    Block,
    /// So, with the loss in chunks of tokens.
    Chunked,
}

/// Tokens whose logits exist at once.
const CHUNK: usize = 256;

/// Where the model computes, what waits in host memory meanwhile, and what all is kept in.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub backend: Backend,
    pub offload: Option<Waiting>,
    pub formats: Formats,
}

impl Default for Place {
    /// All of it on the CPU, in f32.
    fn default() -> Self {
        Self {
            backend: Backend::Flex,
            offload: None,
            formats: Formats::default(),
        }
    }
}

/// What all techniques train with.
pub fn optimizer(formats: Formats) -> ModuleOptimizer {
    match formats.are_full() {
        true => AdamWConfig::new().with_weight_decay(0.01).init(),
        false => ours::AdamWConfig::new()
            .with_weight_decay(0.01)
            .with_state_format(formats.of_states())
            .with_weight_format(formats.of_weights())
            .init(),
    }
}

impl Technique {
    /// The device that computes, and of the batches.
    pub fn device(self, place: Place) -> Device {
        let device = place.backend.device().autodiff();
        match self {
            Self::Balanced => device.gradient_checkpointing(),
            _ => device,
        }
    }

    /// `config` as it is trained.
    pub fn applied_to(self, config: &LanguageModelConfig) -> LanguageModelConfig {
        config
            .clone()
            .with_recompute_layers(matches!(self, Self::Block | Self::Chunked))
            .with_chunk_size((self == Self::Chunked).then_some(CHUNK))
    }

    /// Starts a training of the model of `config` with AdamW.
    pub fn start(
        self,
        config: &LanguageModelConfig,
        checkpointing: GradientCheckpointingConfig,
        place: Place,
    ) -> Trainer {
        let config = self.applied_to(config);
        let device = self.device(place);
        // What waits on the host is made there.
        let model = match (self, place.offload) {
            (Self::Stock, _) | (_, None) => config.init(&device),
            (_, Some(_)) => config.init(&self.device(Place::default())),
        };
        let model = place.formats.cast(model);
        let optimizer = optimizer(place.formats);
        if self == Self::Stock {
            return Trainer::stock(model, optimizer);
        }
        let config = FusedConfig::new()
            .with_gradient_checkpointing(checkpointing)
            .with_offload(place.offload.map(Waiting::config));
        Trainer::fused(model, optimizer, config, &device)
    }

    /// Starts the same as planned.
    pub fn start_planned(
        self,
        config: &LanguageModelConfig,
        plan: &Plan<ours::AdamWConfig>,
        place: Place,
    ) -> Trainer {
        let (config, device) = (self.applied_to(config), self.device(place));
        Trainer::Fused {
            fused: plan.fuse(|| config.init(&device)),
            parts: plan.accumulation,
        }
    }
}
