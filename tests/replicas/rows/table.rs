//! The rows.

use backburn::{
    FusedConfig, Offload, OffloadConfig, OffloadHost, Ownership, Sharding, WaitingBlocks,
};
use burn::module::{Lora, ParamGroup};

use super::*;

/// A way to train.
pub struct Row {
    pub name: &'static str,
    /// What is trained of the network, and how.
    of: fn(Network) -> Network,
    pub ranks: usize,
    pub stock: Stock,
    train: fn(Network) -> Box<dyn Training>,
    /// The bytes between steps, those of all devices and the host together, in multiples of the network's in f32 (P).
    pub rest: f64,
    /// At most so many during a step.
    pub peak: f64,
    /// The parameters that a step copies, if that is told where they rest: `ndarray` does not.
    pub copied: Option<usize>,
}

/// All ranks are on the processor here, where they share what they need not change.
pub const ROWS: &[Row] = &[
    Row {
        name: "one device",
        of: |network| network,
        ranks: 1,
        stock: Stock::Main,
        train: |network| Box::new(fused(network)),
        rest: 3.0,
        peak: 3.7,
        copied: Some(0),
    },
    Row {
        name: "states on the host",
        of: |network| network,
        ranks: 1,
        stock: Stock::Main,
        train: |network| offloaded(network, Offload::States),
        rest: 3.0,
        peak: 5.4,
        copied: Some(0),
    },
    Row {
        name: "updates on the host",
        of: |network| network,
        ranks: 1,
        stock: Stock::Main,
        train: |network| offloaded(network, Offload::Updates),
        rest: 4.0,
        peak: 5.6,
        copied: None,
    },
    Row {
        name: "weights on the host",
        of: |network| network,
        ranks: 1,
        stock: Stock::Main,
        train: |network| offloaded(network, Offload::Weights(WaitingBlocks::All)),
        rest: 3.2,
        peak: 5.2,
        copied: None,
    },
    Row {
        name: "ZeRO 1 and 2",
        of: |network| network,
        ranks: 3,
        stock: Stock::Sharded,
        train: |network| replicas(network, Sharding::State, Ownership::ByParamId),
        rest: 3.0,
        peak: 5.2,
        copied: Some(0),
    },
    Row {
        name: "ZeRO 3",
        of: |network| network,
        ranks: 3,
        stock: Stock::Sharded,
        train: |network| replicas(network, Sharding::Full, Ownership::ByParamId),
        rest: 3.0,
        peak: 5.0,
        copied: Some(0),
    },
    Row {
        name: "one owner",
        of: |network| network,
        ranks: 3,
        stock: Stock::Main,
        train: |network| replicas(network, Sharding::State, Ownership::MainDevice),
        rest: 3.0,
        peak: 5.2,
        copied: Some(0),
    },
    Row {
        name: "a frozen base with adapters",
        of: |network| network.apply_lora(Lora::new(2, 4.0)),
        ranks: 1,
        stock: Stock::Main,
        train: |network| Box::new(fused(network)),
        rest: 1.02,
        peak: 1.7,
        copied: Some(0),
    },
    Row {
        name: "a base in training with adapters",
        of: |network| network.apply_lora(Lora::new(2, 4.0)).unfreeze(),
        ranks: 1,
        stock: Stock::Main,
        train: |network| Box::new(fused(network)),
        rest: 3.02,
        peak: 4.6,
        copied: Some(0),
    },
    Row {
        name: "frozen layers",
        of: |network| network.freeze_group(ParamGroup::from_predicate("layers")),
        ranks: 1,
        stock: Stock::Main,
        train: |network| Box::new(fused(network)),
        rest: 1.4,
        peak: 2.1,
        copied: Some(0),
    },
];

impl Row {
    pub fn network(&self, width: usize) -> Network {
        (self.of)(Network::of_width(width, &flex(1)[0]))
    }

    pub fn train(&self, network: Network) -> Box<dyn Training> {
        (self.train)(network)
    }
}

fn fused(network: Network) -> FusedOptimizer<Network> {
    FusedOptimizer::new(network, optimizer().into()).with_hook(ParamGroup::all(), Hook)
}

/// The device is the processor, and so is the host: under two names of Burn's.
fn offloaded(network: Network, offload: Offload) -> Box<dyn Training> {
    let config = OffloadConfig::new(offload)
        .with_host(OffloadHost::NdArray)
        .with_min_elements(1);
    Box::new(fused(network).with_config_on(
        FusedConfig::new().with_offload(Some(config)),
        &Device::flex(),
    ))
}

/// As many ranks as the row has, on the processor.
fn replicas(network: Network, sharding: Sharding, ownership: Ownership) -> Box<dyn Training> {
    let fused = FusedReplicas::new(network, optimizer().into(), flex(3));
    let fused = fused.with_config(
        FusedConfig::new()
            .with_sharding(sharding)
            .with_ownership(ownership),
    );
    Box::new(fused.with_hook(ParamGroup::all(), Hook))
}
