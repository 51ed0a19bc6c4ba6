//! The rows of the table.

use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};

use crate::model::{LanguageModel, LanguageModelConfig};

/// A variant of the training.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub fused: bool,
    pub blocks: bool,
    /// `true` for a loss in chunks of tokens.
    pub chunked: bool,
    /// `true` for tiles of the experts and small chunks of the loss.
    pub tiled: bool,
    pub weights: Option<WeightFormat>,
    pub states: StateFormat,
    /// `true` for the optimizer of this crate instead of Burn's.
    pub single_pass: bool,
}

pub const STOCK: Variant = Variant {
    name: "stock",
    fused: false,
    blocks: false,
    chunked: false,
    tiled: false,
    weights: None,
    states: StateFormat::Full,
    single_pass: false,
};
pub const FUSED: Variant = Variant {
    name: "fused",
    fused: true,
    ..STOCK
};
pub const BLOCKS: Variant = Variant {
    name: "blocks",
    blocks: true,
    ..FUSED
};
pub const CHUNKED: Variant = Variant {
    name: "chunked",
    chunked: true,
    ..BLOCKS
};

pub const VARIANTS: [Variant; 9] = [
    STOCK,
    FUSED,
    BLOCKS,
    CHUNKED,
    Variant {
        name: "chunked-8",
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Variant {
        name: "chunked-split24-8",
        weights: Some(WeightFormat::Split24),
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Variant {
        name: "chunked-stochastic-8",
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Variant {
        name: "chunked-stochastic-4",
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits4,
        ..CHUNKED
    },
    Variant {
        name: "tiled-stochastic-4",
        tiled: true,
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits4,
        ..CHUNKED
    },
];

impl Variant {
    pub fn named(name: &str) -> Self {
        let variant = VARIANTS.into_iter().find(|variant| variant.name == name);
        variant.unwrap_or_else(|| panic!("there is no row {name}"))
    }

    /// Returns `true` if the variant fits in 24 GB at the size `billion`. The activations of all layers do not fit.
    pub fn fits(&self) -> bool {
        self.blocks
    }

    pub fn config(&self, config: LanguageModelConfig) -> LanguageModelConfig {
        let chunk = if self.tiled { 64 } else { 256 };
        config
            .with_recompute_layers(self.blocks)
            .with_loss_chunk(self.chunked.then_some(chunk))
            .with_tile(self.tiled.then_some(256))
    }

    pub fn model(&self, config: &LanguageModelConfig, device: &Device) -> LanguageModel {
        device.seed(1);
        let model = config.init(device);
        if self.weights.is_some() {
            return backburn::cast(model, FloatDType::BF16).unwrap();
        }
        drop(model.valid()); // draws all weights, in module order, however it is trained
        model
    }

    pub fn optimizer(&self) -> ModuleOptimizer {
        match (self.weights, self.states) {
            (None, StateFormat::Full) if !self.single_pass => {
                burn::optim::AdamWConfig::new().init()
            }
            (weights, states) => AdamWConfig::new()
                .with_state_format(states)
                .with_weight_format(weights.unwrap_or(WeightFormat::Plain))
                .init(),
        }
    }
}
