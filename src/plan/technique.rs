use burn::config::Config;

use crate::offload::{Offload, OffloadedBlocks};
use crate::optim::{StateFormat, WeightFormat};

/// A way to take less memory than fused training alone does.
///
/// The planner adds them one after the other, in an [order](super::Planner::with_order).
///
/// ```
/// use backburn::{Planner, Technique, optim::AdamWConfig};
/// # use burn::{nn::LinearConfig, tensor::Device};
/// # let init = || LinearConfig::new(2, 1).init(&Device::flex().autodiff());
/// let planner = Planner::new(init, AdamWConfig::new()).with_order(&[Technique::States8, Technique::Blocks]);
/// ```
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// Blocks under [`gradient_checkpointing`](crate::gradient_checkpointing()) are recomputed, as few as necessary; the chunks of
    /// [`LinearCrossEntropyLoss`](crate::LinearCrossEntropyLoss) are such blocks. The result is the same to the bit.
    Blocks,
    /// The batch is split into parts, whose gradients are [accumulated](crate::FusedOptimizer::accumulate) in a buffer. The result is the same
    /// but for rounding; batch normalization sees the parts, dropout draws for each.
    MicroBatches,
    /// Several of the [devices](super::Planner::with_devices) compute, each with a part of the batch, and share the optimizer states:
    /// [`FusedReplicas`](crate::FusedReplicas). The result is the same but for rounding, as with micro-batches.
    Ranks,
    /// Optimizer states in [8 bits](StateFormat::Bits8).
    States8,
    /// Optimizer states in [4 bits](StateFormat::Bits4).
    States4,
    /// Weights in bf16, with [8 more bits](WeightFormat::Split24) in the optimizer state.
    Split24,
    /// Weights in bf16, [rounded at random](WeightFormat::Stochastic).
    Stochastic,
    /// The gradients of micro-batches go [straight into the states](crate::FusedOptimizer::accumulating_in_state), without a buffer. For
    /// optimizers whose states can accumulate, in full precision and without offload. It is in none of the orders here: Adam's second
    /// moment is then an approximation.
    SumsInState,
    /// Optimizer states are [on the host](crate::Offload::States). For a device with memory of its own.
    HostStates,
    /// Updates are made [on the host](crate::Offload::Updates). For a device with memory of its own.
    HostUpdates,
    /// The weights of blocks are [on the host](crate::Offload::Weights), too. For a device with memory of its own.
    HostWeights,
}

impl Technique {
    /// The default order: the techniques that cost least come first.
    pub const LEAST_COST: &'static [Self] = &[
        Self::Blocks,
        Self::Ranks,
        Self::MicroBatches,
        Self::States8,
        Self::HostStates,
        Self::HostUpdates,
        Self::Split24,
        Self::States4,
        Self::Stochastic,
        Self::HostWeights,
    ];

    /// The techniques that take least time come first, also if they change the result.
    pub const FAST_FIRST: &'static [Self] = &[
        Self::Ranks,
        Self::States8,
        Self::States4,
        Self::Blocks,
        Self::MicroBatches,
        Self::Split24,
        Self::Stochastic,
        Self::HostStates,
        Self::HostUpdates,
        Self::HostWeights,
    ];

    /// An order without formats: weights and states keep their precision.
    pub const SAME_PRECISION: &'static [Self] = &[
        Self::Blocks,
        Self::Ranks,
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
