//! From a model and a number of bytes to a training that fits.
//!
//! - *Asked*: a [`budget`], and the [`technique`]s that are allowed, in an order.
//! - *Measured*: the [`planner`] makes the variants of a model, one after the other until something fits. A [`probe`] runs its passes, which [`climb`] from
//!   one item to the batch; what is chosen then, and what nearly is, goes through [`trial`]s.
//! - *Known*: all [`facts`], in them the [`variant`]s, in each of them a [`pass`] over so many items of a [`split`] batch, with every [`run`] and what blocks that run
//!   [`twice`] tell of those that don't. How large a pass is hoped and feared to be before it is run is [`expected`].
//! - *Chosen*: the techniques of a rung are a [`level`]; what it holds is a pass, and what is [`beside`] it; the [`choice`] is what costs least and fits.
//! - *Told*: [`measured`] has a [`ladder`] of the [`rungs`], and a [`plan`] to train by, or an [`error`]: [`nothing_fits`].

mod beside;
mod budget;
mod choice;
mod climb;
mod error;
mod expected;
mod facts;
mod ladder;
mod level;
mod measured;
mod named;
mod nothing_fits;
mod optimizer;
mod pass;
#[allow(clippy::module_inception)] // The plan of this room.
mod plan;
mod planner;
mod probe;
mod run;
mod rungs;
mod split;
mod technique;
mod trial;
mod twice;
mod variant;

pub use budget::Budget;
pub use error::PlanError;
pub use ladder::{Fidelity, Ladder, Rung};
pub use measured::Measured;
pub use optimizer::PlannedOptimizer;
pub use plan::Plan;
pub use planner::Planner;
pub use technique::Technique;
