//! What waits in host memory, to choose from on a command line.

use anyhow::{Result, bail};
use backburn::{Offload, OffloadConfig, OffloadedBlocks};
use clap::ValueEnum;

use crate::backend::Backend;

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
    /// Refuses a device whose memory is that of the host.
    pub fn check(self, backend: Backend) -> Result<()> {
        #[allow(irrefutable_let_patterns)] // What is there depends on the build.
        if let Backend::Flex = backend {
            bail!(
                "--offload {self:?} needs a device with memory of its own: a build with its feature, and --device"
            );
        }
        Ok(())
    }

    pub fn config(self) -> OffloadConfig {
        OffloadConfig::new(match self {
            Self::States => Offload::States,
            Self::Updates => Offload::Updates,
            Self::Weights => Offload::Weights(OffloadedBlocks::All),
        })
    }
}
