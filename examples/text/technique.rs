//! Ways to train with less memory.

use backburn::{FusedOptimizer, GradientCheckpointingConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use clap::ValueEnum;

use crate::backend::Backend;
use crate::formats::Formats;
use crate::model::{Transformer, TransformerConfig};
use crate::offload::Waiting;

/// How the model is trained.
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
}

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

/// A training step: given a batch and a learning rate, it returns the loss.
pub type Step = Box<dyn FnMut(Tensor<2, Int>, f64) -> Tensor<1>>;

/// What all techniques train with.
pub fn optimizer(formats: Formats) -> ModuleOptimizer {
    match formats.are_full() {
        true => AdamWConfig::new().with_weight_decay(0.01).init(),
        false => backburn::optim::AdamWConfig::new()
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

    /// Starts a training of the model of `config` with AdamW.
    pub fn start(
        self,
        config: &TransformerConfig,
        checkpointing: GradientCheckpointingConfig,
        place: Place,
    ) -> Step {
        let config = config.clone().with_recompute_layers(self == Self::Block);
        let device = self.device(place);
        // What waits on the host is made there.
        let model = match (self, place.offload) {
            (Self::Stock, _) | (_, None) => config.init(&device),
            (_, Some(_)) => config.init(&self.device(Place::default())),
        };
        let model = place.formats.cast(model);
        let mut optimizer = optimizer(place.formats);
        if self == Self::Stock {
            let mut model = Some(model);
            return Box::new(move |batch, rate| {
                let current = model.take().expect("the step before has put it back");
                let loss = current.loss(batch);
                let gradients = GradientsParams::from_grads(loss.backward(), &current);
                model = Some(optimizer.step(rate, current, gradients));
                loss.detach()
            });
        }
        let mut fused =
            FusedOptimizer::new(model, optimizer).with_gradient_checkpointing(checkpointing);
        if let Some(waiting) = place.offload {
            fused = fused.with_offload(waiting.config(), &device);
        }
        Box::new(move |batch, rate| fused.step(rate, |model: &Transformer| model.loss(batch)))
    }
}
