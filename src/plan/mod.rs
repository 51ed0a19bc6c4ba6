//! From a model and a number of bytes to a training that fits.
//!
//! [`planner`] measures: the states of an optimizer, as an estimate does, and how passes [`climb`] from one item to the batch, as far as they are
//! [`expected`] to fit, each an [`attempt`] at a [`recorded`] [`pass`] with blocks that run [`twice`] and without. What is known of weights of one type in one place is a [`width`], and [`choice`] tells from
//! all of them which way costs least on each [`level`] of techniques. What is chosen, and what nearly is, goes through a [`trial`]. [`measured`] makes of that a [`ladder`] that shows all ways, and a [`plan`] to train by.

mod attempt;
mod budget;
mod choice;
mod climb;
mod error;
mod expected;
mod ladder;
mod level;
mod measured;
mod named;
mod optimizer;
mod pass;
#[allow(clippy::module_inception)] // The plan of this room.
mod plan;
mod planner;
mod recorded;
mod technique;
mod trial;
mod twice;
mod width;

pub use budget::Budget;
pub use error::PlanError;
pub use ladder::{Fidelity, Ladder, Rung};
pub use measured::Measured;
pub use optimizer::PlannedOptimizer;
pub use plan::Plan;
pub use planner::Planner;
pub use technique::Technique;
