use std::sync::Arc;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::ParamGroup;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::{ExecutionStrategy, Learner, LearnerModel, TrainStep};

use super::checkout;
use super::execution::Execution;
use super::metric::{LastStep, StepMetric};
use super::model::FusedModel;
use super::strategy::FusedStrategy;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::Policies;
use crate::optim::{AccumulateInState, Ruled};
use crate::policy::GradientHook;
use crate::record;

/// Burn's [`Learner`] with the optimizer fused into the backward pass.
///
/// Takes the place of `Learner` in a program; [`launch_fused`](super::LaunchFused::launch_fused)
/// takes that of `launch`.
///
/// What becomes of the gradients is chosen as on a [`FusedOptimizer`](crate::FusedOptimizer):
///
/// ```
/// use backburn::{FusedConfig, GlobalNormClippingConfig};
/// use backburn::train::FusedLearner;
/// # use burn::{lr_scheduler::constant::ConstantLr, optim::ModuleOptimizer};
/// # use burn::train::{LearnerModel, TrainStep};
/// # fn learner<M: LearnerModel>(model: M, optimizer: ModuleOptimizer, lr_scheduler: ConstantLr)
/// # -> Result<(), backburn::FusedError> where <M as TrainStep>::Input: Clone {
///
/// let config = FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(1.0)));
/// let learner = FusedLearner::new(model, optimizer, lr_scheduler).with_config(config)?;
/// let norm = learner.gradient_norm(); // for `SupervisedTraining::metric_train_numeric`
/// # Ok(())
/// # }
/// ```
pub struct FusedLearner<M: LearnerModel> {
    pub(super) learner: Learner<FusedModel<M>>,
    pub(super) strategy: FusedStrategy<M>,
}

impl<M: LearnerModel> FusedLearner<M> {
    /// Create a learner from the same three parts as [`Learner::new`].
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Self {
        Self::with_policies(model, optimizer, lr_scheduler, Policies::default())
    }

    /// A learner for which the builder's `grads_accumulation` puts the gradients of micro-batches
    /// straight into the state of `optimizer`, as
    /// [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state).
    ///
    /// # Errors
    ///
    /// If the options of the optimizer don't allow it.
    pub fn accumulating_in_state(
        model: M,
        optimizer: Ruled<impl AccumulateInState>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<Self, FusedError> {
        let (optimizer, policies) = Policies::in_state_of(optimizer)?;
        Ok(Self::with_policies(
            model,
            optimizer,
            lr_scheduler,
            policies,
        ))
    }

    /// A learner with policies that were put together elsewhere.
    pub(crate) fn with_policies(
        model: M,
        optimizer: ModuleOptimizer,
        lr_scheduler: impl Into<ModuleLrScheduler>,
        policies: Policies,
    ) -> Self {
        Self {
            learner: Learner::new(FusedModel::new(model), optimizer, lr_scheduler),
            strategy: FusedStrategy {
                policies,
                execution: Execution::default(),
                clone_item: None,
                last_step: LastStep::default(),
            },
        }
    }

    /// Trains as `config` says. The training strategy names the devices, [below](Self::with_training_strategy).
    ///
    /// [Exact clipping](crate::GlobalNormClippingConfig::Exact) and
    /// [skipping a step](crate::Overflow::SkipStep) run every training step that ends in an update twice, on a clone of the
    /// batch. If the norm is not finite, the training ends with an error and nothing is updated. With
    /// [loss scaling](FusedConfig::loss_scaling) the model's `TrainStep::step` must call
    /// [`scale_loss`](crate::scale_loss); the training ends with an error where it does not. Checkpoints hold the scale.
    ///
    /// With [offload](FusedConfig::offload) a model that does not fit on its device is created on the host, and is on the host
    /// in the [result](burn::train::LearningResult).
    ///
    /// # Errors
    ///
    /// If an option makes no sense, by itself or with another one.
    ///
    /// What [`FusedOptimizer::with_config`](crate::FusedOptimizer::with_config) checks on the device ends the training when it
    /// begins.
    pub fn with_config(mut self, config: FusedConfig) -> Result<Self, FusedError>
    where
        <M as TrainStep>::Input: Clone,
    {
        // Burn loads a checkpoint into the optimizer before the training begins.
        let optimizer = checkout::optimizer(&mut self.learner);
        let (policies, optimizer) = self.strategy.policies.with_config(config, optimizer)?;
        checkout::set_optimizer(&mut self.learner, optimizer);
        self.strategy.policies = policies;
        self.strategy.clone_item = Some(Clone::clone);
        Ok(self)
    }

    /// Calls `hook` with every finished gradient of the parameters in `group`, after the hooks before
    /// it. If a hook stops the step, the training ends with its error.
    ///
    /// A `TrainStep::step` that edits `TrainOutput::grads` (a mask, noise, a removed gradient) edits them in a hook
    /// instead: the gradients of trained parameters are used and released in the backward pass, and `grads` holds none of
    /// them. A gradient that is registered there ends the training with an error, and a gradient that is removed there is
    /// used all the same.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.strategy.policies.hooks.push(group, Arc::new(hook));
        self
    }

    /// Where the training runs, as `SupervisedTraining::with_training_strategy`, whose own setting
    /// [`launch_fused`](super::LaunchFused::launch_fused) can't see. By default on the model's device.
    ///
    /// `ExecutionStrategy::multi` trains on several devices, with the results of stock Burn: see
    /// [`FusedReplicas`](crate::FusedReplicas), and [`FusedConfig::sharding`] for what each holds. As there,
    /// the batches of every device count as much as those of any other, and the gradients are summed. Whose
    /// `MultiDeviceOptim` is `OptimSharded` may name other owners in [`FusedConfig::ownership`]. With
    /// [offload](FusedConfig::offload) the single device is the one that computes.
    ///
    /// # Errors
    ///
    /// If there are no devices, or the strategy is distributed data parallel training, which is not fused yet.
    pub fn with_training_strategy(
        mut self,
        strategy: ExecutionStrategy,
    ) -> Result<Self, FusedError> {
        self.strategy.execution = Execution::of(strategy)?;
        Ok(self)
    }

    /// A metric of the global norm of the gradients before clipping.
    pub fn gradient_norm(&self) -> StepMetric {
        StepMetric::new("Gradient Norm", &self.strategy.last_step, |step| {
            step.gradient_norm
        })
    }

    /// A metric of what the gradients are multiplied by to clip them.
    pub fn clipping_coefficient(&self) -> StepMetric {
        StepMetric::new("Clipping Coefficient", &self.strategy.last_step, |step| {
            step.clipping
        })
    }

    /// A metric of what the loss is multiplied by.
    pub fn loss_scale(&self) -> StepMetric {
        StepMetric::new("Loss Scale", &self.strategy.last_step, |step| {
            step.loss_scale
        })
    }

    /// Load the state of the model, as [`Learner::load_model`]. Load it before that of the optimizer,
    /// which goes by the parameter ids that come with it.
    ///
    /// # Panics
    ///
    /// If the record does not fit the model, as `Learner` does.
    pub fn load_model(&mut self, record: ModuleRecord) {
        self.learner.load_model(record);
    }

    /// Load the state of the optimizer, as [`Learner::load_optim`]. Choose the policies before: the
    /// state of theirs that the record may have is loaded with it.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`FusedOptimizer::load_record`](crate::FusedOptimizer::load_record) would return, as
    /// `Learner::load_optim` panics on a record that it can't load.
    pub fn load_optim(&mut self, record: OptimizerRecord) {
        let optimizer = checkout::optimizer(&mut self.learner);
        let model = self.model();
        let optimizer =
            record::load(record, &optimizer, &model).unwrap_or_else(|error| panic!("{error}"));
        checkout::set_optimizer(&mut self.learner, optimizer);
    }

    /// Load the state of the learning rate scheduler, as [`Learner::load_scheduler`].
    pub fn load_scheduler(&mut self, record: LrSchedulerRecord) {
        self.learner.load_scheduler(record);
    }

    /// Fork the learner's model to the given device, as [`Learner::fork`].
    pub fn fork(&mut self, device: &Device) {
        self.learner.fork(device);
    }

    /// The model, as [`Learner::model`].
    pub fn model(&self) -> M {
        self.learner.model().into_inner()
    }
}
