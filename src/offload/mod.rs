//! What of a training waits in host memory, and where the model computes.

mod config;
mod placement;

pub use config::{Offload, OffloadConfig, OffloadHost, WaitingBlocks};
pub(crate) use placement::Placement;
