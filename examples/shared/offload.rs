//! Offload to host memory for the command line.

use anyhow::{Result, bail};
use backburn::{Offload, OffloadConfig, OffloadedBlocks};
use clap::ValueEnum;

use crate::backend::Backend;

/// Data in host memory while the device computes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The optimizer states.
    States,
    /// The updates: only the weights are on the device.
    Updates,
    /// Also the weights of the blocks, which are recomputed.
    Weights,
}

impl Waiting {
    /// Returns an error for a device whose memory is host memory.
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
