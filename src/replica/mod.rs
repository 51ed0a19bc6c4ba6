//! A model on several devices, each of which computes with a batch of its own.
//!
//! A *rank* is one device with its replica of the model; every parameter has an *owner* among them, where the
//! gradients of all ranks are added up and the optimizer state lives. Which rank that is says the
//! [`Ownership`], what the others keep the [`Sharding`]. Nothing here knows of weights, passes or modules.

mod flow;
mod group;
mod memory_tracker;
mod ownership;

pub(crate) use group::{Group, Membership};
pub(crate) use memory_tracker::HeldBytes;
pub(crate) use ownership::Size;
pub use ownership::{Ownership, Sharding};
