//! The optimizer and the gradient policies of a training.

use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use backburn::{FusedConfig, GlobalNormClippingConfig};

use crate::method::Method;
use crate::options::{Options, States, Weights};

impl Options {
    pub fn optimizer(&self) -> AdamWConfig {
        AdamWConfig::new()
            .with_epsilon(1e-8)
            .with_weight_decay(self.weight_decay)
            .with_state_format(match self.states {
                None => StateFormat::Full,
                Some(States::Eight) => StateFormat::Bits8,
                Some(States::Four) => StateFormat::Bits4,
            })
            .with_weight_format(match self.weights {
                Weights::F32 => WeightFormat::Plain,
                Weights::Bf16 => WeightFormat::Split24,
                Weights::Stochastic => WeightFormat::Stochastic,
            })
    }

    /// Returns the config of the fused training: its gradient policies.
    pub fn fused(&self) -> FusedConfig {
        // The gradients of adapters are small enough to wait for their norm.
        let clipping = match self.method {
            Method::Full => GlobalNormClippingConfig::Lagged(self.clip),
            _ => GlobalNormClippingConfig::ExactInBuffer(self.clip),
        };
        FusedConfig::new()
            .with_clipping((self.clip > 0.0).then_some(clipping))
            // The gradient of the head is a sum over chunks of tokens.
            .with_full_precision_accumulation(true)
    }
}
