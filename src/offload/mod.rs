//! Offload of optimizer states, updates, weights and activations to host memory: config, threads, and activations.
//!
//! States are transferred in `shared_optimizer`, weights and frozen parameters in `weights`.
//!
//! # Memory
//!
//! | | device | host |
//! |---|---|---|
//! | [`Offload::States`] | weights, gradients, states in flight | states |
//! | [`Offload::Updates`] | compute copy of the weights, gradients in flight | weights, states |
//! | [`Offload::Weights`] | weights of the current and the next block, gradients in flight | weights, states |
//! | `offload_inputs` | inputs of blocks in flight | inputs of blocks |
//!
//! [`InFlightLimit`](crate::threads::InFlightLimit) bounds the bytes in flight.

mod activations;
mod capacity;
mod config;
mod engine;
mod host_memory;
mod workers;

pub(crate) use activations::{ActivationOffload, OffloadedTensors};
pub(crate) use capacity::check_offload_fits;
pub use config::{Offload, OffloadConfig, OffloadHost, OffloadedBlocks};
pub(crate) use engine::OffloadEngine;
pub(crate) use host_memory::HostMemory;
pub(crate) use workers::TransferWorkers;
