//! The promises whose tests can share a process, one file each.

mod averages;
mod backends;
mod backward;
mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod compute_dtype;
mod config;
mod device;
mod estimate;
mod exchange;
mod faults;
mod fidelity;
mod fine_tuning;
mod formats;
mod gallery;
mod gradient_checkpointing;
mod language_model;
mod learner;
mod linear_cross_entropy;
mod misuse;
mod mlp;
mod muon;
mod offload;
mod optim;
mod own_rule;
mod pictures;
mod policies;
mod pools;
mod pruned;
mod quantized;
mod records;
mod residual;
mod statistics;
mod trace;
mod vit;
