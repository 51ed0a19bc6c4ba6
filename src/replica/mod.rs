//! A model on several devices, each with its own batch.
//!
//! A *rank* is one device with its replica of the model. Every parameter has an *owner* among the ranks: it sums the
//! gradients of all ranks and holds the optimizer state. [`Ownership`] chooses the owner, [`Sharding`] what the other
//! ranks keep. This module does not depend on weights, passes or modules.

mod flow;
mod group;
mod memory_tracker;
mod ownership;

pub(crate) use group::{Group, Membership};
pub(crate) use memory_tracker::HeldBytes;
pub(crate) use ownership::Size;
pub use ownership::{Ownership, Sharding};
