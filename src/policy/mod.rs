//! What happens to a finished gradient.
//!
//! It goes through *hooks*, one after the other: measuring, scaling and the user's own are all of one
//! kind ([`hook`]). Then it meets the goal of the pass: it is added to a buffer, dropped, or used
//! ([`update`]). A [`plan`] says all that of a pass.

mod accumulation;
mod addressed;
mod anomaly;
mod clip;
mod compare;
mod gone;
mod hook;
mod keeper;
mod measure;
mod norm;
mod plan;
mod scaling;
mod state;
mod state_names;
mod states;
mod statistics;
mod update;
mod waiting;

pub(crate) use accumulation::{Accumulation, PartialSum};
pub(crate) use addressed::step_one;
pub use anomaly::AnomalyCheck;
pub use clip::GlobalNormClippingConfig;
pub(crate) use hook::Hooks;
pub use hook::{GradientFlow, GradientHook, HookedParameter};
pub(crate) use keeper::{AverageKeeper, KEEPER_ID, average_id, is_average};
pub(crate) use measure::{Norm, is_finite};
pub(crate) use plan::{Goal, Plan};
pub use scaling::{LossScalingConfig, Overflow};
pub(crate) use state::{LossScale, PolicyState};
pub use statistics::{GradientStatistic, GradientStatistics};
pub(crate) use update::Update;
pub(crate) use waiting::Leaving;
