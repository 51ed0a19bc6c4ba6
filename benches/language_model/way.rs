//! The rows of the table.

use backburn::LinearCrossEntropyLossConfig;
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};

use crate::model::{LanguageModel, LanguageModelConfig};

/// A way to train.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub name: &'static str,
    pub fused: bool,
    pub blocks: bool,
    /// The loss in chunks of tokens.
    pub chunked: bool,
    /// Tiles of the layers and small chunks of the loss.
    pub tiled: bool,
    pub weights: Option<WeightFormat>,
    pub states: StateFormat,
    /// The optimizer of this crate, where Burn's would do.
    pub single_pass: bool,
}

pub const STOCK: Way = Way {
    name: "stock",
    fused: false,
    blocks: false,
    chunked: false,
    tiled: false,
    weights: None,
    states: StateFormat::Full,
    single_pass: false,
};
pub const FUSED: Way = Way {
    name: "fused",
    fused: true,
    ..STOCK
};
pub const BLOCKS: Way = Way {
    name: "blocks",
    blocks: true,
    ..FUSED
};
pub const CHUNKED: Way = Way {
    name: "chunked",
    chunked: true,
    ..BLOCKS
};

pub const WAYS: [Way; 9] = [
    STOCK,
    FUSED,
    BLOCKS,
    CHUNKED,
    Way {
        name: "chunked-8",
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Way {
        name: "chunked-split24-8",
        weights: Some(WeightFormat::Split24),
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Way {
        name: "chunked-stochastic-8",
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits8,
        ..CHUNKED
    },
    Way {
        name: "chunked-stochastic-4",
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits4,
        ..CHUNKED
    },
    Way {
        name: "tiled-stochastic-4",
        tiled: true,
        weights: Some(WeightFormat::Stochastic),
        states: StateFormat::Bits4,
        ..CHUNKED
    },
];

impl Way {
    pub fn named(name: &str) -> Self {
        let way = WAYS.into_iter().find(|way| way.name == name);
        way.unwrap_or_else(|| panic!("there is no row {name}"))
    }

    /// Whether a machine of 24 GB has room for it at the size `billion`: that for the activations of all layers is not there.
    pub fn fits(&self) -> bool {
        self.blocks
    }

    pub fn config(&self, config: LanguageModelConfig) -> LanguageModelConfig {
        let loss = LinearCrossEntropyLossConfig::new();
        let loss = match self.tiled {
            true => loss.with_chunk_size(32),
            false => loss,
        };
        config
            .with_recompute_layers(self.blocks)
            .with_loss(self.chunked.then_some(loss))
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
