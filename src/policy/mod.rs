//! Policies for complete gradients.
//!
//! A gradient passes through a chain of *hooks* for measuring, scaling and the user's own code ([`hook`]). Then the
//! pass uses it: it is added to a buffer, dropped, or applied ([`update`]). A [`pipeline`] describes this for one
//! pass.

mod accumulation;
mod anomaly;
mod clip;
mod compare;
mod extra_state;
mod hook;
mod measure;
mod norm;
mod offloaded;
mod pipeline;
mod query;
mod removed;
mod scaling;
mod state;
mod states;
mod statistics;
mod update;

pub(crate) use accumulation::{Accumulation, PartialSum};
pub use anomaly::AnomalyCheck;
pub use clip::GlobalNormClippingConfig;
pub(crate) use extra_state::{AverageExtraState, EXTRA_STATE_ID, average_id, is_average};
pub(crate) use hook::Hooks;
pub use hook::{GradientFlow, GradientHook, HookedParameter};
pub(crate) use measure::{Norm, is_finite};
pub(crate) use offloaded::Eviction;
pub(crate) use pipeline::{GradientPipeline, GradientUse};
pub use scaling::{LossScalingConfig, Overflow};
pub(crate) use state::{LossScale, PolicyState};
pub use statistics::{GradientStatistic, GradientStatistics};
pub(crate) use update::{Update, step_one};
