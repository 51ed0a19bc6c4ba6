//! Fused training with Burn's `SupervisedTraining`: [`FusedLearner`] replaces `Learner`, and
//! [`LaunchFused::launch_fused`] replaces `launch`.
//!
//! A program written for Burn's `Learner` changes two lines (and imports the trait):
//!
//! ```no_run
//! use backburn::train::{FusedLearner, LaunchFused};
//! # use std::sync::Arc;
//! # use burn::{data::dataloader::DataLoader, module::Module, nn::{Linear, LinearConfig}};
//! # use burn::{lr_scheduler::constant::ConstantLr, optim::AdamWConfig, tensor::{Device, Tensor}};
//! # use burn::train::{InferenceStep, LearningResult, RegressionOutput, SupervisedTraining};
//! # use burn::train::{TrainOutput, TrainStep, metric::LossMetric};
//! # #[derive(Module, Debug)]
//! # struct Net { linear: Linear }
//! # impl Net {
//! #     fn output(&self, x: Tensor<2>) -> RegressionOutput {
//! #         let output = self.linear.forward(x.clone());
//! #         RegressionOutput::new(output.clone().mean(), output, x)
//! #     }
//! # }
//! # impl TrainStep for Net {
//! #     type Input = Tensor<2>;
//! #     type Output = RegressionOutput;
//! #     fn step(&self, x: Tensor<2>) -> TrainOutput<RegressionOutput> {
//! #         let output = self.output(x);
//! #         TrainOutput::new(self, output.loss.backward(), output)
//! #     }
//! # }
//! # impl InferenceStep for Net {
//! #     type Input = Tensor<2>;
//! #     type Output = RegressionOutput;
//! #     fn step(&self, x: Tensor<2>) -> RegressionOutput { self.output(x) }
//! # }
//! # type Loader = Arc<dyn DataLoader<Tensor<2>>>;
//! # fn run(train: Loader, valid: Loader) -> LearningResult<Net> {
//! # let model = Net { linear: LinearConfig::new(2, 2).init(&Device::flex().autodiff()) };
//! # let (optimizer, lr_scheduler) = (AdamWConfig::new().init(), ConstantLr::new(1e-3));
//!
//! let training = SupervisedTraining::new("runs/1", train, valid)
//!     .metrics((LossMetric::new(),))
//!     .num_epochs(10);
//!
//! let learner = FusedLearner::new(model, optimizer, lr_scheduler); // was Learner::new
//! let result = training.launch_fused(learner);                     // was training.launch
//! # result
//! # }
//! ```
//!
//! Metrics, renderers, summary, early stopping, interruption, checkpointers, resuming with
//! `.checkpoint(n)` (or [`resume_from_newest`](LaunchFused::resume_from_newest)), learning rate schedulers and gradient accumulation are those of the builder.
//! Checkpoint folders are compatible with stock Burn in both directions. If a checkpoint has a
//! state that does not fit its parameter, or that the optimizer of the training can't load,
//! `launch_fused` panics with the name of the parameter. `Sgd` is an exception: it loads the state of another optimizer
//! as a state without velocity, and starts fresh, as in Burn.
//!
//! # The type of the builder
//!
//! The model type of the builder is [`FusedModel`]. Rust infers it if the builder is created and
//! launched in one function. A function that returns the builder names it:
//!
//! ```
//! use std::sync::Arc;
//!
//! use backburn::train::FusedModel;
//! use burn::data::dataloader::DataLoader;
//! use burn::train::{InferenceStep, LearnerModel, SupervisedTraining, TrainStep};
//!
//! fn training<Net: LearnerModel>(
//!     train: Arc<dyn DataLoader<<Net as TrainStep>::Input>>,
//!     valid: Arc<dyn DataLoader<<Net as InferenceStep>::Input>>,
//! ) -> SupervisedTraining<FusedModel<Net>> {
//!     SupervisedTraining::new("runs/1", train, valid).num_epochs(10)
//! }
//! ```
//!
//! `SupervisedTraining<Net>` has no `launch_fused`: Burn keeps its fields private, so it can't be
//! converted.
//!
//! # Limits
//!
//! - `launch_fused` replaces a strategy that was set with the builder's `with_training_strategy`, which is private: set
//!   it on the [learner](FusedLearner::with_training_strategy). Each launch logs the strategy in use.
//! - For the same reason `gradient_checkpointing()` of the builder has no effect. Burn's gradient
//!   checkpointing is a property of the model's device: create the model on
//!   `device.autodiff().gradient_checkpointing()`. (With that option, Burn 0.22's own `launch` panics at
//!   the first step of a model that was created on another device.)
//! - A custom `TrainStep::optimize` is not called, because the gradients never exist all at once.
//! - A panic of user code in training is passed on, as in Burn; on several devices it ends the training with
//!   `TrainingError::Workers`, as in Burn. A step that fails also ends the training with
//!   `TrainingError::Workers`, the only error of Burn for a training step.

mod checkout;
mod epoch;
mod execution;
mod front_end;
mod launch;
mod learner;
mod metric;
mod model;
mod newest;
mod resume;
mod snapshot;
mod strategy;
mod swap_slot;

pub use launch::LaunchFused;
pub use learner::FusedLearner;
pub use metric::StepMetric;
pub use model::FusedModel;
