//! Gradient checkpointing for the command line.

use clap::ValueEnum;

use crate::preset::Preset;

/// Activations that are kept for the backward pass.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// All activations.
    None,
    /// Burn's strategy: cheap operations are recomputed.
    Balanced,
    /// The input of each block (in fused training).
    Block,
}

impl GradientCheckpointing {
    /// Returns the default of a size. With large batches, activations are most of the memory; the smallest model has so few
    /// that time matters more.
    pub fn of(preset: Preset) -> Self {
        match preset {
            Preset::Digits => Self::None,
            Preset::VitTi16 | Preset::VitS16 | Preset::VitB16 | Preset::VitL16 => Self::Block,
        }
    }
}
