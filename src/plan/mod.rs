//! From a model and a number of bytes to a training that fits.
//!
//! [`planner`] measures each [`variant`] of the model: the states of an optimizer, as an estimate does, and with a [`probe`] the passes. They
//! [`climb`] from one item to the batch as far as they are [`expected`] to fit, each a [`run`] with blocks that run [`twice`] and one
//! without; a [`pass`] has what is known of so many items. What is chosen, and what nearly is, goes through a [`trial`]. All that is known are the
//! [`facts`]. From them [`choice`] tells, on each [`level`] of techniques, which way costs least, with what is held [`beside`] a pass.
//! [`measured`] has the result: a [`ladder`] that shows all ways, and a [`plan`] to train by, or that [`nothing_fits`].

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
