//! Loss scaling: the loss is multiplied before the backward pass, so that small gradients don't
//! vanish in f16, and the gradients are divided before the update.

mod config;
mod overflow;
mod scaler;

pub use config::{LossScalingConfig, Overflow};
pub(crate) use overflow::LeaveNotFinite;
pub(crate) use scaler::LossScaler;
