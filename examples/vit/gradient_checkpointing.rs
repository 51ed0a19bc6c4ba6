//! Gradient checkpointing to choose from on a command line.

use clap::ValueEnum;

use crate::preset::Preset;

/// What of the activations is kept for the backward pass.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// All activations are kept.
    None,
    /// Burn's own: what is cheap to compute is computed again.
    Balanced,
    /// The input of each block is kept (in fused training).
    Block,
}

impl GradientCheckpointing {
    /// What suits a size: with batches of many images, activations are most of the memory; the smallest
    /// model has so few that time counts for more.
    pub fn of(preset: Preset) -> Self {
        match preset {
            Preset::Digits => Self::None,
            Preset::VitTi16 | Preset::VitS16 | Preset::VitB16 | Preset::VitL16 => Self::Block,
        }
    }
}
