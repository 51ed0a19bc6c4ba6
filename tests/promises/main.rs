//! The promises whose tests can share a process, one folder for each feature.

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod device;
mod examples;
mod faults;
mod fidelity;
mod formats;
mod gradient_checkpointing;
mod learner;
mod memory;
mod nn;
mod offload;
mod optim;
mod policies;
mod quantized;
mod records;
mod step;
