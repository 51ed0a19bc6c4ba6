//! Burn's training, fused: [`FusedLearner`] in the place of `Learner`, [`LaunchFused`] on
//! `SupervisedTraining`.
//!
//! A program written for Burn's `Learner` changes two lines (and imports the trait):
//!
//! ```ignore
//! use backburn::train::{FusedLearner, LaunchFused};
//!
//! let learner = FusedLearner::new(model, optimizer, lr_scheduler); // was Learner::new
//! let result = training.launch_fused(learner);                     // was training.launch
//! ```
//!
//! Metrics, renderers, summary, early stopping, interruption, checkpointers, resuming with
//! `.checkpoint(n)`, learning rate schedulers and gradient accumulation are those of the builder.
//! Checkpoint folders are the stock ones: what one writes, the other resumes.
//!
//! # Limits
//!
//! - Training runs on one device, the model's. Burn keeps the strategy of the builder private, so
//!   `launch_fused` can't see one set with `with_training_strategy`, which it replaces. It says so
//!   in the log at every launch.
//! - Gradient checkpointing is a property of the model's device, as everywhere in Burn 0.22:
//!   create the model on `device.autodiff().gradient_checkpointing()`.
//! - A model's own `TrainStep::optimize` is not called: there is no moment at which all gradients
//!   exist.

mod epoch;
mod exchange;
mod launch;
mod learner;
mod loan;
mod metric;
mod model;
mod resume;
mod strategy;

pub use launch::LaunchFused;
pub use learner::FusedLearner;
pub use metric::StepMetric;
pub use model::FusedModel;
