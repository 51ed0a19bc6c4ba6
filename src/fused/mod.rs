//! A model with its optimizer fused into the backward pass.
//!
//! There are two doors, [`FusedOptimizer`] and [`FusedReplicas`]: they call the closures of a program. Behind both is one
//! core, which begins a pass on all ranks, ends it, and knows all else of the training.

mod core;
mod optimizer;
mod parameter_list;
mod policies;
mod replicas;
mod trainer;

#[cfg(feature = "train")]
pub(crate) use core::Core;
pub(crate) use core::{ResumeError, Trainer};
pub use optimizer::FusedOptimizer;
pub(crate) use parameter_list::ParameterList;
pub(crate) use policies::Policies;
pub use replicas::{FusedReplicas, RankBytes};
