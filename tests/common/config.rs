//! Configs with one option.

use backburn::{
    FusedConfig, GlobalNormClippingConfig, LossScalingConfig, OffloadConfig, Sharding,
    WeightAveragingConfig,
};

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
