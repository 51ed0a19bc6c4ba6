use std::fmt::{self, Display, Formatter};

use burn::config::{Config, config_to_json};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::error::FusedError;

/// The parts of a training that are stored in host memory; see
/// [`FusedOptimizer::with_config_on`](crate::FusedOptimizer::with_config_on).
///
/// Each variant also offloads the parts of the variants before it.
#[derive(Config, Copy, Debug, PartialEq)]
pub enum Offload {
    /// The optimizer states. A state is fetched for the update of its parameter and then offloaded again, while the
    /// device computes other gradients.
    States,
    /// The updates. The host stores the weights and the optimizer state: complete gradients are transferred to it, it steps the
    /// parameters, and the new weights are transferred to the device, which has a copy to compute with.
    Updates,
    /// Also the weights of blocks: they are fetched when their [block](crate::gradient_checkpointing()) runs and when it is
    /// recomputed, and dropped afterwards. A trained weight that is read outside of a recomputed block stays on the device, as
    /// with `Updates`.
    ///
    /// All frozen weights are offloaded, whatever the selection of blocks. Outside of a block they are fetched for each read; one
    /// with an adapter must be read in a block.
    Weights(OffloadedBlocks),
}

/// Selection of the blocks whose weights are offloaded under [`Offload::Weights`].
///
/// The last and the first blocks in the order of a step stay on the device, because a step reads their weights twice in a row.
#[derive(Config, Copy, Debug, PartialEq)]
pub enum OffloadedBlocks {
    /// All blocks.
    All,
    /// A fraction of the blocks, from 0 to 1.
    Fraction(f64),
    /// The blocks that remain after this number of bytes on the device is filled.
    Beyond(usize),
}

/// The CPU backend that stores offloaded tensors and computes updates, for an [`OffloadConfig`].
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum OffloadHost {
    /// Burn's `flex`. With [`backburn::optim`](crate::optim), a step is a single pass over memory.
    Flex,
    /// Burn's older CPU backend.
    NdArray,
}

/// Options for offload to host memory.
///
/// ```
/// use backburn::{Offload, OffloadConfig, OffloadedBlocks};
///
/// let config = OffloadConfig::new(Offload::Weights(OffloadedBlocks::Fraction(0.5)));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadConfig {
    /// The offloaded parts of the training.
    pub offload: Offload,
    /// The backend on the host. The default is [`Flex`](OffloadHost::Flex).
    #[serde(default = "default_host")]
    pub host: OffloadHost,
    /// Minimum number of elements of an offloaded parameter, by default 4096. Smaller parameters and their states stay on the
    /// device, where a transfer would cost more than it saves. With [`Offload::Updates`] and [`Offload::Weights`] they are
    /// offloaded, too, if the device computes in another [float type](crate::FusedConfig::compute_dtype).
    #[serde(default = "default_min_elements")]
    pub min_elements: usize,
}

fn default_host() -> OffloadHost {
    OffloadHost::Flex
}

fn default_min_elements() -> usize {
    4096
}

impl Config for OffloadConfig {}

impl Display for OffloadConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

impl OffloadConfig {
    /// Creates a config that offloads these parts, with defaults for all other options.
    pub fn new(offload: Offload) -> Self {
        Self {
            offload,
            host: default_host(),
            min_elements: default_min_elements(),
        }
    }

    /// Sets [`host`](Self::host).
    pub fn with_host(self, host: OffloadHost) -> Self {
        Self { host, ..self }
    }

    /// Sets [`min_elements`](Self::min_elements).
    pub fn with_min_elements(self, min_elements: usize) -> Self {
        Self {
            min_elements,
            ..self
        }
    }

    /// Returns an error if an option is out of range.
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

    /// Returns `true` if optimizer states are offloaded and parameters are stored on the device.
    pub(crate) fn offloads_states(&self) -> bool {
        self.offload == Offload::States
    }

    /// Returns the selection of blocks whose weights are offloaded; `None` if the device caches a copy of all weights.
    pub(crate) fn offloaded_blocks(&self) -> Option<OffloadedBlocks> {
        match self.offload {
            Offload::Weights(blocks) => Some(blocks),
            Offload::States | Offload::Updates => None,
        }
    }

    /// Returns the bytes that the device caches between steps of `bytes` of weights on the host, as if all were read in blocks of
    /// equal size.
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
    /// Returns `true` for each block that stays on the device, given the bytes of its weights in the order of a step. Blocks are
    /// selected alternately from the end and the start.
    pub(crate) fn resident_blocks(self, bytes: &[usize]) -> Vec<bool> {
        let count = bytes.len();
        // The capacity, in blocks or in bytes.
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
    /// Returns the device of the backend, or an error if this build lacks the backend.
    #[allow(deprecated)] // `ndarray`: Burn 0.22 still ships it, and its users train on it.
    pub(crate) fn device(self) -> Result<Device, FusedError> {
        #[allow(unreachable_patterns)] // The backends depend on the features.
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "ndarray")]
            Self::NdArray => Ok(Device::ndarray()),
            absent => Err(FusedError::Offload {
                reason: format!(
                    "this build of backburn has no backend {absent:?} for the host: enable its feature"
                ),
            }),
        }
    }
}
