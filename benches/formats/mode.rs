//! Compared formats of weights and states.

use backburn::optim::{AdamWConfig, InFormat, LionConfig, StateFormat, WeightFormat};
use backburn::{FusedConfig, cast};
use burn::optim::{Adafactor, AdafactorConfig, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::FloatDType;

/// Formats of a training.
#[derive(Clone, Copy)]
pub struct Mode {
    pub name: &'static str,
    dtype: FloatDType,
    /// Type of the computation, if it differs; stock Burn has no such training.
    computes: Option<FloatDType>,
    optimizer: fn() -> ModuleOptimizer,
}

pub const MODES: [Mode; 12] = [
    mode("f32", FloatDType::F32, || {
        adamw(StateFormat::Full, WeightFormat::Plain)
    }),
    mode("8-bit states", FloatDType::F32, || {
        adamw(StateFormat::Bits8, WeightFormat::Plain)
    }),
    mode("4-bit states", FloatDType::F32, || {
        adamw(StateFormat::Bits4, WeightFormat::Plain)
    }),
    mode("bf16 + 8 bits, 8-bit states", FloatDType::BF16, || {
        adamw(StateFormat::Bits8, WeightFormat::Split24)
    }),
    Mode {
        computes: Some(FloatDType::F32),
        ..mode(
            "bf16 + 8 bits, 8-bit states, computed in f32",
            FloatDType::BF16,
            || adamw(StateFormat::Bits8, WeightFormat::Split24),
        )
    },
    mode("bf16 stochastic, 8-bit states", FloatDType::BF16, || {
        adamw(StateFormat::Bits8, WeightFormat::Stochastic)
    }),
    mode("bf16 stochastic, 4-bit states", FloatDType::BF16, || {
        adamw(StateFormat::Bits4, WeightFormat::Stochastic)
    }),
    mode("f32, Lion", FloatDType::F32, || {
        lion(StateFormat::Full, WeightFormat::Plain)
    }),
    mode("bf16 stochastic, 8-bit Lion", FloatDType::BF16, || {
        lion(StateFormat::Bits8, WeightFormat::Stochastic)
    }),
    mode("f32, Adafactor", FloatDType::F32, || {
        ModuleOptimizer::from(adafactor())
    }),
    mode("bf16 stochastic, Adafactor", FloatDType::BF16, || {
        InFormat::new(adafactor(), WeightFormat::Stochastic).into()
    }),
    mode("bf16, Burn's AdamW", FloatDType::BF16, || {
        burn::optim::AdamWConfig::new()
            .with_weight_decay(0.01)
            .init()
    }),
];

/// Modes of long trainings, all computed in f32.
pub const LONG: [Mode; 5] = [
    MODES[0],
    MODES[1],
    MODES[2],
    MODES[5],
    Mode {
        computes: Some(FloatDType::F32),
        ..mode("bf16 + 8 bits, 4-bit states", FloatDType::BF16, || {
            adamw(StateFormat::Bits4, WeightFormat::Split24)
        })
    },
];

const fn mode(name: &'static str, dtype: FloatDType, optimizer: fn() -> ModuleOptimizer) -> Mode {
    Mode {
        name,
        dtype,
        computes: None,
        optimizer,
    }
}

fn adamw(states: StateFormat, weights: WeightFormat) -> ModuleOptimizer {
    AdamWConfig::new()
        .with_weight_decay(0.01)
        .with_state_format(states)
        .with_weight_format(weights)
        .init()
}

fn lion(states: StateFormat, weights: WeightFormat) -> ModuleOptimizer {
    LionConfig::new()
        .with_weight_decay(0.01)
        .with_state_format(states)
        .with_weight_format(weights)
        .init()
}

/// Returns Adafactor with the learning rate of AdamW.
fn adafactor() -> Adafactor {
    AdafactorConfig::new()
        .with_relative_step(false)
        .with_scale_parameter(false)
        .with_weight_decay(0.01)
        .build()
}

impl Mode {
    pub fn named(name: &str) -> Self {
        let mode = MODES.into_iter().find(|mode| mode.name == name);
        mode.unwrap_or_else(|| panic!("there is no mode `{name}`"))
    }

    pub fn is_lion(self) -> bool {
        self.name.ends_with("Lion")
    }

    /// Returns `true` if stock Burn supports the mode.
    pub fn is_of_stock(self) -> bool {
        self.computes.is_none()
    }

    /// Returns the config of fused training.
    pub fn config(self) -> FusedConfig {
        FusedConfig::new().with_compute_dtype(self.computes)
    }

    /// Casts `model` to the type of its trained weights.
    pub fn cast<M: Module>(self, model: M) -> M {
        cast(model, self.dtype).unwrap()
    }

    /// Casts `input` to the type of the computation.
    pub fn input<const D: usize>(self, input: Tensor<D>) -> Tensor<D> {
        let dtype = self.computes.unwrap_or(self.dtype);
        Tensor::from_inner(input.inner().cast(dtype))
    }

    pub fn optimizer(self) -> ModuleOptimizer {
        (self.optimizer)()
    }
}
