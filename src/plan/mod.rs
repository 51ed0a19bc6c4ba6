//! From a model and a number of bytes to a training that fits.
//!
//! - *Input*: a [`budget`], and the [`technique`]s that are allowed, in an order.
//! - *Measured*: the [`planner`] makes the model and a [`probe`] runs dry runs of it: over one item, two, and on to the batch, with all blocks recomputed
//!   ([`pass_profile`]). What a pass holds whose blocks keep their activations is computed from the [`curve`] of its recording, what a pass over more items
//!   holds from the [`forecast`] through those over fewer.
//! - *Computed*: a [`profile`] has what was measured of the model in one [`storage`] of its weights. The [`search`] takes the first [`set`] of
//!   techniques that fits, with the largest part of the batch and the fewest recomputed blocks ([`set_profile`]).
//! - *Proved*: one dry run of exactly that. If it does not fit, the search goes on.
//! - *Output*: a [`plan`] to [`follow`], with its [`candidate`]s, or an [`error`].

mod budget;
mod candidate;
mod curve;
mod error;
mod follow;
mod forecast;
mod named;
mod optimizer;
mod pass_profile;
#[allow(clippy::module_inception)]
mod plan;
mod planner;
mod probe;
mod profile;
mod search;
mod set;
mod set_profile;
mod storage;
mod technique;

pub use budget::Budget;
pub use candidate::Candidate;
pub use error::PlanError;
pub use optimizer::PlannedOptimizer;
pub use plan::Plan;
pub use planner::Planner;
pub use technique::Technique;
