//! Policies for complete gradients.
//!
//! A gradient passes through a chain of *hooks* for measuring, scaling and the user's own code ([`hook`]). Then the
//! pass uses it: it is added to a sum, dropped, or applied. A [`pipeline`] describes this for one pass.

mod accumulation;
mod anomaly;
mod clip;
mod compare;
mod hook;
mod measure;
mod pipeline;
mod scaling;
mod squares;
mod state;
mod statistics;

pub(crate) use accumulation::{Accumulation, PartialSum};
pub use anomaly::AnomalyCheck;
pub use clip::GlobalNormClippingConfig;
pub(crate) use compare::{Losses, ROUNDING};
pub(crate) use hook::Hooks;
pub use hook::{GradientFlow, GradientHook, HookedParameter};
pub(crate) use measure::{Norm, is_finite};
pub(crate) use pipeline::{GradientPipeline, GradientUse};
pub use scaling::{LossScalingConfig, Overflow};
pub(crate) use state::{LossScale, PolicyState};
pub use statistics::{GradientStatistic, GradientStatistics};
