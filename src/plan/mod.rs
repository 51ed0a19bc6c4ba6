//! A planner that fits a training into a memory budget.
//!
//! - *Input*: a [`budget`], and an ordered list of allowed [`technique`]s.
//! - *Measurement*: the [`planner`] creates the model and a [`probe`] runs dry runs of it, over one item, two, and more
//!   up to the batch, with all blocks recomputed ([`pass_profile`]). The [`curve`] of a recording computes the bytes of a
//!   pass whose blocks keep their activations. A [`forecast`] gives the bytes of a pass over more items.
//! - *Computation*: a [`profile`] holds the measurements of the model for one [`storage`] of its weights. The [`search`] selects the first
//!   [`set`] of techniques that fits, with the largest part of the batch and the fewest recomputed blocks ([`set_profile`]).
//! - *Proof*: a dry run of exactly this candidate. If it does not fit, the search continues.
//! - *Output*: a [`plan`], with its [`candidate`]s, or an [`error`].

mod budget;
mod candidate;
mod concurrent_calls;
mod curve;
mod error;
mod estimate;
mod forecast;
mod named;
mod optimizer;
mod outline;
mod pass_bytes;
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
pub use estimate::MemoryEstimate;
pub use optimizer::PlannedOptimizer;
pub use plan::Plan;
pub use planner::Planner;
pub use technique::Technique;
