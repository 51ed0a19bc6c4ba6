//! Optimizers for the command line.

use backburn::optim as ours;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::formats::Formats;

#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimizer {
    #[default]
    #[value(name = "adamw")]
    AdamW,
    /// Muon for matrices, AdamW for everything else, and for embedding, head and routers.
    Muon,
}

const ON_ADAMW: [&str; 3] = ["embedding", "head", "router"];

impl Optimizer {
    /// Creates the optimizer, with weights and states in `formats`.
    pub fn init(self, formats: Formats) -> ModuleOptimizer {
        let adamw = ours::AdamWConfig::new().with_weight_decay(0.01);
        match self {
            Self::AdamW if formats.are_full() => AdamWConfig::new().with_weight_decay(0.01).init(),
            Self::AdamW => adamw
                .with_state_format(formats.of_states())
                .with_weight_format(formats.of_weights())
                .init(),
            Self::Muon => ours::MuonWithAdamWConfig::new(ON_ADAMW.map(String::from).to_vec())
                .with_adamw(adamw)
                .with_state_format(formats.of_states())
                .with_weight_format(formats.of_weights())
                .init(),
        }
    }
}
