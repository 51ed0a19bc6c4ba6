//! A model with its optimizer fused into the backward pass.
//!
//! Two front ends call the closures of a program: [`FusedOptimizer`] and [`FusedReplicas`]. Both own a core, which
//! runs passes on all ranks and holds the state of the training.

mod core;
mod loss;
mod optimizer;
mod parameter_list;
mod policies;
mod replicas;
mod report;
mod trainer;

#[cfg(feature = "train")]
pub(crate) use core::Core;
pub(crate) use core::{ResumeError, Trainer};
pub use loss::Loss;
pub use optimizer::FusedOptimizer;
pub(crate) use parameter_list::ParameterList;
#[cfg(feature = "train")]
pub(crate) use policies::Policies;
pub use replicas::{FusedReplicas, RankBytes};
pub use report::StepReport;
