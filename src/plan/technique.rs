use backburn_optim::{StateFormat, WeightFormat};
use burn::config::Config;

use crate::offload::{Offload, OffloadedBlocks};

/// A technique to reduce the memory of fused training.
///
/// The planner adds techniques one after the other, in an [order](super::Planner::with_order).
///
/// ```
/// use backburn::{Planner, Technique, optim::AdamWConfig};
/// # use burn::{nn::LinearConfig, tensor::Device};
/// # let init = || LinearConfig::new(2, 1).init(&Device::flex().autodiff());
/// let planner = Planner::new(init, AdamWConfig::new()).with_order(&[Technique::States8, Technique::Blocks]);
/// ```
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// Recomputes the fewest blocks under [`gradient_checkpointing`](crate::gradient_checkpointing()) that suffice. The
    /// chunks of [`LinearCrossEntropyLoss`](crate::LinearCrossEntropyLoss) are such blocks. The result is equal bit for
    /// bit, with [two exceptions](crate::GradientCheckpointingConfig).
    Blocks,
    /// Splits the batch into parts, whose gradients are [accumulated](crate::FusedOptimizer::accumulate) in a buffer. The result is equal
    /// up to rounding; batch normalization and dropout act on each part.
    MicroBatches,
    /// Optimizer states in [8 bits](StateFormat::Bits8).
    States8,
    /// Optimizer states in [4 bits](StateFormat::Bits4).
    States4,
    /// Weights in bf16, with [8 more bits](WeightFormat::Split24) in the optimizer state.
    Split24,
    /// Weights in bf16, [rounded at random](WeightFormat::Stochastic).
    Stochastic,
    /// Optimizer states [on the host](crate::Offload::States). For a device with its own memory.
    HostStates,
    /// Updates [on the host](crate::Offload::Updates). For a device with its own memory.
    HostUpdates,
    /// Weights of blocks also [on the host](crate::Offload::Weights). For a device with its own memory.
    HostWeights,
}

impl Technique {
    /// The default order: techniques with the least cost first.
    pub const LEAST_COST: &'static [Self] = &[
        Self::Blocks,
        Self::MicroBatches,
        Self::States8,
        Self::HostStates,
        Self::HostUpdates,
        Self::Split24,
        Self::States4,
        Self::Stochastic,
        Self::HostWeights,
    ];

    /// An order without formats: weights and states keep their precision.
    pub const SAME_PRECISION: &'static [Self] = &[
        Self::Blocks,
        Self::MicroBatches,
        Self::HostStates,
        Self::HostUpdates,
        Self::HostWeights,
    ];

    pub(super) fn states(self) -> Option<StateFormat> {
        match self {
            Self::States8 => Some(StateFormat::Bits8),
            Self::States4 => Some(StateFormat::Bits4),
            _ => None,
        }
    }

    pub(super) fn weights(self) -> Option<WeightFormat> {
        match self {
            Self::Split24 => Some(WeightFormat::Split24),
            Self::Stochastic => Some(WeightFormat::Stochastic),
            _ => None,
        }
    }

    pub(super) fn offload(self) -> Option<Offload> {
        match self {
            Self::HostStates => Some(Offload::States),
            Self::HostUpdates => Some(Offload::Updates),
            Self::HostWeights => Some(Offload::Weights(OffloadedBlocks::All)),
            _ => None,
        }
    }
}
