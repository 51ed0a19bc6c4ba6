use std::sync::Arc;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::ParamGroup;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::{ExecutionStrategy, Learner, LearnerModel, TrainStep};

use super::execution::Execution;
use super::loan;
use super::metric::{LastStep, StepMetric};
use super::model::FusedModel;
use crate::error::FusedError;
use crate::fused::in_state;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::offload::OffloadConfig;
use crate::optim::AccumulateInState;
use crate::policy::{GlobalNormClippingConfig, GradientHook, LossScalingConfig, Policies};
use crate::record;
use crate::replica::Sharding;

/// Burn's [`Learner`] with the optimizer fused into the backward pass.
///
/// Takes the place of `Learner` in a program; [`launch_fused`](super::LaunchFused::launch_fused)
/// takes that of `launch`.
///
/// What becomes of the gradients is chosen as on a [`FusedOptimizer`](crate::FusedOptimizer):
///
/// ```
/// use backburn::GlobalNormClippingConfig;
/// use backburn::train::FusedLearner;
/// # use burn::{lr_scheduler::constant::ConstantLr, optim::ModuleOptimizer};
/// # use burn::train::{LearnerModel, TrainStep};
/// # fn learner<M: LearnerModel>(model: M, optimizer: ModuleOptimizer, lr_scheduler: ConstantLr)
/// # where <M as TrainStep>::Input: Clone {
///
/// let learner = FusedLearner::new(model, optimizer, lr_scheduler)
///     .with_clipping(GlobalNormClippingConfig::Exact(1.0));
/// let norm = learner.gradient_norm(); // for `SupervisedTraining::metric_train_numeric`
/// # }
/// ```
pub struct FusedLearner<M: LearnerModel> {
    pub(super) learner: Learner<FusedModel<M>>,
    pub(super) policies: Policies,
    pub(super) gradient_checkpointing: GradientCheckpointingConfig,
    pub(super) offload: Option<(OffloadConfig, Device)>,
    pub(super) execution: Execution,
    pub(super) sharding: Sharding,
    pub(super) draws: bool,
    pub(super) repeat: Option<Repeat<M>>,
    pub(super) last_step: LastStep,
}

/// Copies a batch for the second of two passes.
pub(super) type Repeat<M> = fn(&<M as TrainStep>::Input) -> <M as TrainStep>::Input;

impl<M: LearnerModel> FusedLearner<M> {
    /// Create a learner from the same three parts as [`Learner::new`].
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Self {
        Self {
            learner: Learner::new(FusedModel::new(model), optimizer, lr_scheduler),
            policies: Policies::default(),
            gradient_checkpointing: GradientCheckpointingConfig::default(),
            offload: None,
            execution: Execution::default(),
            sharding: Sharding::default(),
            draws: true,
            repeat: None,
            last_step: LastStep::default(),
        }
    }

    /// A learner for which the builder's `grads_accumulation` puts the gradients of micro-batches
    /// straight into the state of `optimizer`, as
    /// [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state).
    ///
    /// # Panics
    ///
    /// If the options of the optimizer don't allow it.
    pub fn accumulating_in_state(
        model: M,
        optimizer: impl AccumulateInState,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Self {
        let (optimizer, policies) = in_state(optimizer).unwrap_or_else(|error| panic!("{error}"));
        let mut learner = Self::new(model, optimizer, lr_scheduler);
        learner.policies = policies;
        learner
    }

    /// Clips the gradients of every step by their global norm.
    ///
    /// Exact clipping runs every training step that ends in an update twice, on a clone of the batch.
    /// If the norm is not finite, the training ends with an error and nothing is updated.
    ///
    /// # Panics
    ///
    /// As [`FusedOptimizer::with_clipping`](crate::FusedOptimizer::with_clipping).
    #[must_use]
    pub fn with_clipping(mut self, clipping: GlobalNormClippingConfig) -> Self
    where
        <M as TrainStep>::Input: Clone,
    {
        self.repeat = Some(Clone::clone);
        self.chosen(|policies| policies.set_clipping(clipping))
    }

    /// Scales the loss of every step, and the gradients back.
    ///
    /// The model's `TrainStep::step` must call [`scale_loss`](crate::scale_loss); the training ends with
    /// an error where it does not. Checkpoints hold the scale.
    ///
    /// # Panics
    ///
    /// As [`FusedOptimizer::with_loss_scaling`](crate::FusedOptimizer::with_loss_scaling).
    #[must_use]
    pub fn with_loss_scaling(mut self, scaling: LossScalingConfig) -> Self
    where
        <M as TrainStep>::Input: Clone,
    {
        self.repeat = Some(Clone::clone);
        self.chosen(|policies| policies.set_scaling(scaling))
    }

    /// Adds up the gradients of micro-batches in f32, as
    /// [`FusedOptimizer::with_full_precision_accumulation`](crate::FusedOptimizer::with_full_precision_accumulation).
    ///
    /// # Panics
    ///
    /// As that.
    #[must_use]
    pub fn with_full_precision_accumulation(self) -> Self {
        self.chosen(Policies::set_accumulation_in_full_precision)
    }

    /// Calls `hook` with every finished gradient of the parameters in `group`, after the hooks before
    /// it. If a hook stops the step, the training ends with its error.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.policies.push_hook(group, Arc::new(hook));
        self
    }

    /// Chooses which of the blocks under [`gradient_checkpointing`](crate::gradient_checkpointing()) run twice, and where
    /// their inputs wait, as
    /// [`FusedOptimizer::with_gradient_checkpointing`](crate::FusedOptimizer::with_gradient_checkpointing).
    #[must_use]
    pub fn with_gradient_checkpointing(
        mut self,
        gradient_checkpointing: GradientCheckpointingConfig,
    ) -> Self {
        self.gradient_checkpointing = gradient_checkpointing;
        self
    }

    /// Where the training runs, as `SupervisedTraining::with_training_strategy`, whose own setting
    /// [`launch_fused`](super::LaunchFused::launch_fused) can't see. By default on the model's device.
    ///
    /// `ExecutionStrategy::multi` trains on several devices, with the results of stock Burn: see
    /// [`FusedReplicas`](crate::FusedReplicas), and [`with_sharding`](Self::with_sharding) for what each holds. As there,
    /// the batches of every device count as much as those of any other, and the gradients are summed.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_with_training_strategy`](Self::try_with_training_strategy) returns;
    /// when the training begins, if it is to be [offloaded](Self::with_offload), too.
    #[must_use]
    pub fn with_training_strategy(self, strategy: ExecutionStrategy) -> Self {
        self.try_with_training_strategy(strategy)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_training_strategy`](Self::with_training_strategy).
    ///
    /// # Errors
    ///
    /// If there are no devices, or the strategy is distributed data parallel training, which is not fused yet.
    pub fn try_with_training_strategy(
        mut self,
        strategy: ExecutionStrategy,
    ) -> Result<Self, FusedError> {
        self.execution = Execution::of(strategy)?;
        Ok(self)
    }

    /// Chooses what every one of several devices keeps of the parameters that it does not own, as
    /// [`FusedReplicas::with_sharding`](crate::FusedReplicas::with_sharding). The launch panics if `Full` is chosen, and no devices with
    /// [`with_training_strategy`](Self::with_training_strategy).
    #[must_use]
    pub fn with_sharding(mut self, sharding: Sharding) -> Self {
        self.sharding = sharding;
        self
    }

    /// Lets the forward passes of several devices run at once, for models that draw no random numbers, as
    /// [`FusedReplicas::without_random_numbers`](crate::FusedReplicas::without_random_numbers).
    #[must_use]
    pub fn without_random_numbers(mut self) -> Self {
        self.draws = false;
        self
    }

    /// Lets parts of the training wait in host memory while the model computes on `device`, as
    /// [`FusedOptimizer::with_offload`](crate::FusedOptimizer::with_offload). The batches come to `device`. A model that
    /// does not fit there is created on the host, and is on the host in the [result](burn::train::LearningResult).
    ///
    /// # Panics
    ///
    /// When the training begins, as `FusedOptimizer::with_offload`.
    #[must_use]
    pub fn with_offload(mut self, config: OffloadConfig, device: &Device) -> Self {
        self.offload = Some((config, device.clone()));
        self
    }

    fn chosen(mut self, choose: impl FnOnce(&mut Policies) -> Result<(), FusedError>) -> Self {
        choose(&mut self.policies).unwrap_or_else(|error| panic!("{error}"));
        if let Some(keeper) = self.policies.keeper() {
            // Burn loads a checkpoint into the optimizer before the training begins.
            let optimizer = keeper.join(loan::optimizer(&mut self.learner));
            loan::set_optimizer(&mut self.learner, optimizer);
        }
        self
    }

    /// A metric of the global norm of the gradients before clipping.
    pub fn gradient_norm(&self) -> StepMetric {
        StepMetric::new("Gradient Norm", &self.last_step, |step| step.gradient_norm)
    }

    /// A metric of what the gradients are multiplied by to clip them.
    pub fn clipping_coefficient(&self) -> StepMetric {
        StepMetric::new("Clipping Coefficient", &self.last_step, |step| {
            step.clipping
        })
    }

    /// A metric of what the loss is multiplied by.
    pub fn loss_scale(&self) -> StepMetric {
        StepMetric::new("Loss Scale", &self.last_step, |step| step.loss_scale)
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
    /// With the message of the error that [`try_load_optim`](Self::try_load_optim) returns.
    pub fn load_optim(&mut self, record: OptimizerRecord) {
        self.try_load_optim(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`load_optim`](Self::load_optim).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_load_record`](crate::FusedOptimizer::try_load_record).
    pub fn try_load_optim(&mut self, record: OptimizerRecord) -> Result<(), FusedError> {
        let optimizer = loan::optimizer(&mut self.learner);
        let optimizer = record::load(record, &optimizer, &self.model())?;
        loan::set_optimizer(&mut self.learner, optimizer);
        Ok(())
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
