//! What happens to a finished gradient.
//!
//! It goes through *hooks*, one after the other: measuring, scaling and the user's own are all of one
//! kind ([`hook`]). Then it meets the goal of the pass: it is added to a buffer, dropped, or used
//! ([`update`]). [`plan`] puts a pass together from the policies of the optimizer.

mod accumulation;
mod adaptive;
mod addressed;
mod anomaly;
mod clip;
mod compare;
mod departed;
mod hook;
mod keeper;
mod measure;
mod norm;
mod plan;
mod policies;
mod scaling;
mod state;
mod states;
mod statistics;
mod update;
mod waiting;

pub(crate) use accumulation::{Accumulation, PartialSum};
pub(crate) use adaptive::Passes;
pub use anomaly::AnomalyCheck;
pub use clip::GlobalNormClippingConfig;
pub(crate) use compare::Unconfirmed;
pub use hook::{GradientFlow, GradientHook, HookedParameter};
pub(crate) use keeper::{AverageKeeper, KEEPER_ID, average_id, is_average, statistic_id};
pub(crate) use measure::{Norm, is_finite};
pub(crate) use norm::Squares;
pub(crate) use plan::{Goal, Plan};
pub(crate) use policies::Policies;
pub use scaling::{LossScalingConfig, Overflow};
pub use statistics::{GradientStatistic, GradientStatistics};
pub(crate) use update::Update;
pub(crate) use waiting::Leaving;
