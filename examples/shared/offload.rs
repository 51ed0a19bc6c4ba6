//! What waits in host memory, to choose from on a command line.

use backburn::{Offload, OffloadConfig, WaitingBlocks};
use clap::ValueEnum;

/// What waits in host memory while the device computes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The states of the optimizer.
    States,
    /// The updates: the device has the weights alone.
    Updates,
    /// The weights of the blocks, too, which run twice.
    Weights,
}

impl Waiting {
    pub fn config(self) -> OffloadConfig {
        OffloadConfig::new(match self {
            Self::States => Offload::States,
            Self::Updates => Offload::Updates,
            Self::Weights => Offload::Weights(WaitingBlocks::All),
        })
    }
}
