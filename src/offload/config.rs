use burn::config::Config;
use burn::tensor::Device;

use crate::error::FusedError;

/// What of a training waits in host memory while the model computes on a device that has less; see
/// [`FusedOptimizer::with_config_on`](crate::FusedOptimizer::with_config_on).
///
/// Each waits beside all that the ones before it leave there.
#[derive(Config, Copy, Debug, PartialEq)]
pub enum Offload {
    /// The optimizer state. It comes over for the update of its parameter and goes back, while others are computed.
    States,
    /// The update. A finished gradient leaves for the host, which keeps the weights and the optimizer state and
    /// steps them there; the device holds the weights that it computes with, and gets the new ones back.
    Updates,
    /// The weights of blocks, too: they come over when their
    /// [block](crate::gradient_checkpointing()) runs, for the first time and for the second, and are gone after
    /// it. A weight that is read outside of a block stays on the device, as with `Updates`. Frozen weights wait,
    /// whichever blocks they are in, and never go back; one with an adapter must be read in a block.
    Weights(OffloadedBlocks),
}

/// Of which blocks the weights wait in host memory, under [`Offload::Weights`].
///
/// The blocks that stay on the device are the last and the first ones in the order of a step: their weights would
/// turn around at once.
#[derive(Config, Copy, Debug, PartialEq)]
pub enum OffloadedBlocks {
    /// All.
    All,
    /// This part of them, from 0 to 1.
    Fraction(f64),
    /// Those beyond the ones whose weights fit into so many bytes of the device.
    Beyond(usize),
}

/// The backend of Burn's that holds what waits, and computes the updates, for an [`OffloadConfig`].
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum OffloadHost {
    /// Steps in a single pass over memory, with [`backburn::optim`](crate::optim).
    Flex,
    /// Burn's older CPU backend.
    NdArray,
}

/// How a training is divided between a device and the host.
///
/// ```
/// use backburn::{Offload, OffloadConfig, OffloadedBlocks};
///
/// let config = OffloadConfig::new(Offload::Weights(OffloadedBlocks::Fraction(0.5)));
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct OffloadConfig {
    /// What waits in host memory.
    pub offload: Offload,
    /// What holds it there.
    #[config(default = "OffloadHost::Flex")]
    pub host: OffloadHost,
    /// Parameters of fewer elements stay on the device with all that is theirs, unless it computes in another
    /// [float type](crate::FusedConfig::compute_dtype): a transfer would cost more than they do.
    #[config(default = 4096)]
    pub min_elements: usize,
}

impl OffloadConfig {
    /// Refuses what can't be meant.
    pub(crate) fn check(&self) -> Result<(), FusedError> {
        match self.offload {
            Offload::Weights(OffloadedBlocks::Fraction(part)) if !(0.0..=1.0).contains(&part) => {
                let reason =
                    format!("`OffloadedBlocks::Fraction` is {part}: it must be from 0 to 1");
                Err(FusedError::Offload { reason })
            }
            _ => Ok(()),
        }
    }

    /// Whether optimizer states wait on the host while the parameters rest on the device.
    pub(crate) fn offloads_states(&self) -> bool {
        self.offload == Offload::States
    }

    /// Of which blocks the weights wait, if those of any do; else the device keeps a copy of what rests on the host.
    pub(crate) fn offloaded_blocks(&self) -> Option<OffloadedBlocks> {
        match self.offload {
            Offload::Weights(blocks) => Some(blocks),
            Offload::States | Offload::Updates => None,
        }
    }

    /// What the device keeps between two steps of weights of so many bytes that rest on the host, as if all were
    /// read in blocks of one size.
    pub(crate) fn device_bytes_of(&self, bytes: usize) -> usize {
        match self.offload {
            Offload::States | Offload::Updates => bytes,
            Offload::Weights(OffloadedBlocks::All) => 0,
            Offload::Weights(OffloadedBlocks::Fraction(part)) => {
                ((1.0 - part) * bytes as f64).round() as usize
            }
            Offload::Weights(OffloadedBlocks::Beyond(budget)) => budget.min(bytes),
        }
    }
}

impl OffloadedBlocks {
    /// Which blocks stay on the device, given the bytes of the weights of each in the order of a step: from the
    /// ends, beginning with the last.
    pub(crate) fn resident_blocks(self, bytes: &[usize]) -> Vec<bool> {
        let count = bytes.len();
        // So much may stay, in blocks or in bytes.
        let (mut left, in_blocks) = match self {
            Self::All => (0, true),
            Self::Fraction(part) => {
                let waiting = (part * count as f64).round() as usize;
                (count.saturating_sub(waiting), true)
            }
            Self::Beyond(budget) => (budget, false),
        };
        let mut stays = vec![false; count];
        for place in 0..count {
            let block = match place % 2 {
                0 => count - 1 - place / 2,
                _ => place / 2,
            };
            let takes = if in_blocks { 1 } else { bytes[block] };
            let Some(rest) = left.checked_sub(takes) else {
                break;
            };
            left = rest;
            stays[block] = true;
        }
        stays
    }
}

impl OffloadHost {
    /// Its device, if this build has it.
    #[allow(deprecated)] // `ndarray`: Burn 0.22 still ships it, and its users train on it.
    pub(crate) fn device(self) -> Result<Device, FusedError> {
        #[allow(unreachable_patterns)] // What is there depends on the build.
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "ndarray")]
            Self::NdArray => Ok(Device::ndarray()),
            absent => Err(FusedError::Offload {
                reason: format!(
                    "this build has no backend {absent:?} for the host: enable the feature of that name"
                ),
            }),
        }
    }
}
