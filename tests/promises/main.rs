//! The promises that need no process of their own; one file each.

mod backends;
mod backward;
mod compare;
mod device;
mod estimate;
mod faults;
mod fidelity;
mod formats;
mod gradient_checkpointing;
mod language_model;
mod learner;
mod linear_cross_entropy;
mod misuse;
mod noting;
mod offload;
mod optim;
mod panics;
mod pictures;
mod policies;
mod pools;
mod records;
mod vit;
