//! What of a training waits in host memory, and where the model computes.

mod activations;
mod capacity;
mod config;
mod engine;
mod workers;

pub(crate) use activations::{ActivationOffload, OffloadedTensors};
pub(crate) use capacity::check_offload_fits;
pub use config::{Offload, OffloadConfig, OffloadHost, OffloadedBlocks};
pub(crate) use engine::OffloadEngine;
pub(crate) use workers::TransferWorkers;
