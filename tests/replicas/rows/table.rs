//! The rows of the table.

use backburn::optim::AdamWConfig;
use burn::module::{QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantValue};

use super::*;

pub struct Row {
    pub name: &'static str,
    /// The trained part of the network, and the optimizer.
    of: fn(Network) -> Network,
    pub ranks: usize,
    pub stock: Stock,
    config: fn() -> FusedConfig,
    /// The storage type of the network.
    dtype: FloatDType,
    optimizer: fn() -> AdamWConfig,
    /// The bytes between steps, those of all devices and the host together, in multiples of the network's in f32 (P).
    pub rest: f64,
    /// The maximum during a step, in the same unit.
    pub peak: f64,
    /// The number of parameters that a step copies; `None` on `ndarray`, which can't report it.
    pub copied: Option<usize>,
}

const PLAIN: Row = Row {
    name: "one device",
    of: |network| network,
    ranks: 1,
    stock: Stock::Main,
    config: FusedConfig::new,
    dtype: FloatDType::F32,
    optimizer: AdamWConfig::new,
    rest: 3.0,
    peak: 3.7,
    copied: Some(0),
};

const THREE_RANKS: Row = Row {
    ranks: 3,
    stock: Stock::Sharded,
    ..PLAIN
};

/// Here all ranks are on the processor, where they share unchanged tensors.
pub const ROWS: &[Row] = &[
    PLAIN,
    Row {
        name: "master weights",
        config: || in_bf16(FusedConfig::new()),
        rest: 3.0,
        peak: 3.6,
        ..PLAIN
    },
    Row {
        name: "bf16 with low bits, computed in f32",
        config: || FusedConfig::new().with_compute_dtype(Some(FloatDType::F32)),
        dtype: FloatDType::BF16,
        optimizer: || {
            AdamWConfig::new()
                .with_state_format(StateFormat::Bits8)
                .with_weight_format(WeightFormat::Split24)
        },
        rest: 1.3,
        peak: 2.0,
        ..PLAIN
    },
    Row {
        name: "states on the host",
        config: || offloaded(Offload::States),
        rest: 3.0,
        peak: 5.4,
        ..PLAIN
    },
    Row {
        name: "updates on the host",
        config: || offloaded(Offload::Updates),
        rest: 4.0,
        peak: 5.6,
        copied: None,
        ..PLAIN
    },
    Row {
        name: "master weights on the host",
        config: || in_bf16(offloaded(Offload::Updates)),
        rest: 3.5,
        peak: 4.6,
        copied: None,
        ..PLAIN
    },
    Row {
        name: "master weights, states on the host",
        config: || in_bf16(offloaded(Offload::States)),
        rest: 3.0,
        peak: 5.4,
        ..PLAIN
    },
    Row {
        name: "weights on the host",
        config: || offloaded(Offload::Weights(OffloadedBlocks::All)),
        rest: 3.2,
        peak: 5.2,
        copied: None,
        ..PLAIN
    },
    Row {
        name: "ZeRO 1 and 2",
        peak: 5.2,
        ..THREE_RANKS
    },
    Row {
        name: "ZeRO 3",
        config: || FusedConfig::sharded(Sharding::Full),
        peak: 5.0,
        ..THREE_RANKS
    },
    Row {
        name: "ZeRO 3 with master weights",
        config: || in_bf16(FusedConfig::sharded(Sharding::Full)),
        peak: 5.4,
        ..THREE_RANKS
    },
    Row {
        name: "one owner",
        ranks: 3,
        config: || FusedConfig::new().with_ownership(Ownership::MainDevice),
        peak: 5.2,
        ..PLAIN
    },
    Row {
        name: "ZeRO 1 and 2, states on the host",
        config: || offloaded(Offload::States),
        peak: 5.4,
        ..THREE_RANKS
    },
    Row {
        name: "ZeRO 1 and 2, updates on the host",
        config: || offloaded(Offload::Updates),
        // Each rank keeps a copy.
        rest: 6.0,
        peak: 8.4,
        copied: None,
        ..THREE_RANKS
    },
    Row {
        name: "ZeRO-Infinity",
        config: || offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full),
        rest: 3.2,
        peak: 6.6,
        copied: None,
        ..THREE_RANKS
    },
    Row {
        name: "a frozen base with adapters",
        of: |network| network.apply_lora(Lora::new(2, 4.0)),
        rest: 1.02,
        peak: 1.7,
        ..PLAIN
    },
    Row {
        name: "a base in 8 bits with adapters",
        of: quantized,
        rest: 0.43,
        peak: 1.0,
        ..PLAIN
    },
    Row {
        name: "a base in 8 bits with adapters, on several devices",
        of: quantized,
        rest: 0.43,
        // The peaks of three passes, each with a weight on its way, may fall together.
        peak: 1.9,
        ..THREE_RANKS
    },
    Row {
        name: "a base in 4 bits with adapters",
        of: in_codes,
        rest: 0.34,
        peak: 0.9,
        ..PLAIN
    },
    Row {
        name: "a base in 4 bits with adapters, on several devices",
        of: in_codes,
        rest: 0.34,
        peak: 1.6,
        ..THREE_RANKS
    },
    Row {
        name: "a base in 4 bits with adapters, on the host",
        of: in_codes,
        config: || offloaded(Offload::Weights(OffloadedBlocks::All)),
        rest: 0.34,
        peak: 1.2,
        copied: None,
        ..PLAIN
    },
    Row {
        name: "a base in 4 bits with adapters, on the host of several devices",
        of: in_codes,
        config: || offloaded(Offload::Weights(OffloadedBlocks::All)).with_sharding(Sharding::Full),
        rest: 0.34,
        peak: 1.9,
        copied: None,
        ..THREE_RANKS
    },
    Row {
        name: "a base in training with adapters",
        of: |network| network.apply_lora(Lora::new(2, 4.0)).unfreeze(),
        rest: 3.02,
        peak: 4.6,
        ..PLAIN
    },
    Row {
        name: "frozen layers",
        of: |network| network.freeze_group(ParamGroup::from_predicate("layers")),
        rest: 1.4,
        peak: 2.1,
        ..PLAIN
    },
];

impl Row {
    pub fn network(&self, width: usize) -> Network {
        let network = Network::of_width(width, &flex(1)[0]);
        (self.of)(cast(network, self.dtype).unwrap())
    }

    /// Returns the compute type, if it differs from the storage type.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        (self.config)().compute_dtype
    }

    pub fn optimizer(&self) -> ModuleOptimizer {
        failing_optimizer((self.optimizer)().build())
    }

    /// Creates the training on the ranks of the row. All are on the processor, which is also the host, under two of
    /// Burn's names.
    pub fn train(&self, network: Network) -> Box<dyn Training> {
        let (optimizer, config) = (self.optimizer(), (self.config)());
        match self.ranks {
            1 => Box::new(
                FusedOptimizer::new(network, optimizer)
                    .unwrap()
                    .with_hook(ParamGroup::all(), failing())
                    .with_config_on(config, &Device::flex())
                    .unwrap(),
            ),
            ranks => Box::new(
                FusedReplicas::new(network, optimizer, flex(ranks))
                    .unwrap()
                    .with_config(config)
                    .unwrap()
                    .with_hook(ParamGroup::all(), failing()),
            ),
        }
    }
}

/// Returns the network with adapters on frozen quantized layers.
fn quantized(network: Network) -> Network {
    let scheme = flex(1)[0].settings().quantization.scheme;
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::Q8S));
    quantizer.set_param_group(ParamGroup::from_predicates(vec!["layers", "weight"]));
    network.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer))
}

/// Returns the network with a base in backburn's own quantized values.
fn in_codes(network: Network) -> Network {
    let layers = ParamGroup::from_predicates(vec!["layers", "weight"]);
    let lora = Lora::new(2, 4.0).set_param_group(layers);
    network.apply_reparameterization(QuantizedLora::new(lora, BaseFormat::Bits4))
}

fn in_bf16(config: FusedConfig) -> FusedConfig {
    config.with_compute_dtype(Some(FloatDType::BF16))
}

/// Returns a config that offloads parameters of any size.
pub fn offloaded(offload: Offload) -> FusedConfig {
    FusedConfig::offload(offload_from_flex(offload))
}
