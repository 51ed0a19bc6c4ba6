//! Configs with one option.

use backburn::optim::WeightFormat;
use backburn::{
    FusedConfig, GlobalNormClippingConfig, LossScalingConfig, Offload, OffloadConfig, OffloadHost,
    OffloadedBlocks, Sharding, WeightAveragingConfig,
};
use burn::tensor::Device;

/// The kinds of offload.
pub const OFFLOADS: [Offload; 3] = [
    Offload::States,
    Offload::Updates,
    Offload::Weights(OffloadedBlocks::All),
];

pub const WEIGHT_FORMATS: [WeightFormat; 3] = [
    WeightFormat::Plain,
    WeightFormat::Stochastic,
    WeightFormat::Split24,
];

/// Offload of parameters of any size to the other CPU backend.
pub fn offload_from(device: &Device, offload: Offload) -> OffloadConfig {
    let host = match device.clone().inner() == Device::flex() {
        true => OffloadHost::NdArray,
        false => OffloadHost::Flex,
    };
    let config = OffloadConfig::new(offload).with_host(host);
    config.with_min_elements(1)
}

/// Offload of parameters of any size from `flex`.
pub fn offload_from_flex(offload: Offload) -> OffloadConfig {
    offload_from(&Device::flex(), offload)
}

pub trait ConfigOf {
    /// Exact clipping to this norm.
    fn exact(max_norm: f64) -> Self;
    /// Lagged clipping to this norm.
    fn lagged(max_norm: f64) -> Self;
    fn clipping(clipping: GlobalNormClippingConfig) -> Self;
    fn scaling(scaling: LossScalingConfig) -> Self;
    fn offload(offload: OffloadConfig) -> Self;
    fn averaging(averaging: WeightAveragingConfig) -> Self;
    fn sharded(sharding: Sharding) -> Self;
}

impl ConfigOf for FusedConfig {
    fn exact(max_norm: f64) -> Self {
        Self::clipping(GlobalNormClippingConfig::Exact(max_norm))
    }

    fn lagged(max_norm: f64) -> Self {
        Self::clipping(GlobalNormClippingConfig::Lagged(max_norm))
    }

    fn clipping(clipping: GlobalNormClippingConfig) -> Self {
        Self::new().with_clipping(Some(clipping))
    }

    fn scaling(scaling: LossScalingConfig) -> Self {
        Self::new().with_loss_scaling(Some(scaling))
    }

    fn offload(offload: OffloadConfig) -> Self {
        Self::new().with_offload(Some(offload))
    }

    fn averaging(averaging: WeightAveragingConfig) -> Self {
        Self::new().with_averaging(Some(averaging))
    }

    fn sharded(sharding: Sharding) -> Self {
        Self::new().with_sharding(sharding)
    }
}
