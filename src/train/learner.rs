use std::collections::HashSet;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use backburn_base::list;
use backburn_optim::{AccumulateInState, ElementWiseOptimizer};
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
use crate::fused::{ParameterList, Policies};
use crate::policy::GradientHook;
use crate::record;
use crate::weights::Role;

/// Burn's [`Learner`] with the optimizer fused into the backward pass.
///
/// Replaces `Learner` in a program, with [`launch_fused`](super::LaunchFused::launch_fused) instead of `launch`.
///
/// The config is that of a [`FusedOptimizer`](crate::FusedOptimizer):
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
    /// Creates a learner with the arguments of [`Learner::new`].
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Self {
        Self::with_policies(model, optimizer, lr_scheduler, Policies::default())
    }

    /// Creates a learner that accumulates the gradients of micro-batches (`grads_accumulation` of the builder)
    /// in the state of `optimizer`, as
    /// [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state) does.
    ///
    /// # Errors
    ///
    /// If the options of the optimizer don't allow it.
    pub fn accumulating_in_state(
        model: M,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
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

    /// Creates a learner with these policies.
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
                ids_at_hooks: Vec::new(),
                execution: Execution::default(),
                clone_item: None,
                last_step: LastStep::default(),
            },
        }
    }

    /// Sets the config. Devices are set by [`with_training_strategy`](Self::with_training_strategy).
    ///
    /// [Exact clipping](crate::GlobalNormClippingConfig::Exact) and
    /// [skipping a step](crate::Overflow::SkipStep) run each training step that ends in an update twice, on a clone of the
    /// batch. If the norm is not finite, the training ends with an error and nothing is updated. With
    /// [loss scaling](FusedConfig::loss_scaling) the model's `TrainStep::step` must call
    /// [`scale_loss`](crate::scale_loss); otherwise the training ends with an error. Checkpoints contain the scale.
    ///
    /// With [offload](FusedConfig::offload), create a model that does not fit on its device on the host. The model in the
    /// [result](burn::train::LearningResult) is on the host.
    ///
    /// # Errors
    ///
    /// If an option is invalid, or contradicts another one. Errors that
    /// [`FusedOptimizer::with_config`](crate::FusedOptimizer::with_config) finds on the device end the training when it
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

    /// Adds a hook that is called with each complete gradient of the parameters in `group`, after the hooks added
    /// earlier. If a hook stops the step, the training ends with its error.
    ///
    /// Use a hook instead of editing `TrainOutput::grads` (for a mask, noise, a removed gradient): the gradients of trained
    /// parameters are applied and released in the backward pass. `grads` contains stand-ins for them. If a step
    /// replaces or removes one, the training ends with an error. If it reads one, it panics (on CubeCL and remote devices the
    /// elements are NaN). Parameters that only checkpointed blocks read have no stand-in.
    ///
    /// A loaded model has the parameter ids of its checkpoint. If `group` names an id of the current model, the training panics before
    /// its first step: choose parameters by path, or add the hook after [`load_model`](Self::load_model).
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        let FusedStrategy {
            policies,
            ids_at_hooks,
            ..
        } = &mut self.strategy;
        let parameters = list(&self.learner.model()).into_iter();
        ids_at_hooks.push(parameters.map(|it| (it.path, it.param.id())).collect());
        policies.hooks.0.push((group, Arc::new(hook)));
        self
    }

    /// Sets the devices of the training; by default the model's device. Replaces
    /// `SupervisedTraining::with_training_strategy`, which has no effect on
    /// [`launch_fused`](super::LaunchFused::launch_fused).
    ///
    /// `ExecutionStrategy::multi` trains on several devices, with the results of stock Burn (except for the order of sums with micro-batches): see
    /// [`FusedReplicas`](crate::FusedReplicas), and [`FusedConfig::sharding`] for the state on each device. As there,
    /// the batches of all devices have equal weight, and the gradients are summed. With
    /// `MultiDeviceOptim::OptimSharded`, [`FusedConfig::ownership`] may assign other owners. With
    /// [offload](FusedConfig::offload), the single device is the one that computes.
    ///
    /// # Errors
    ///
    /// If there are no devices, or the strategy is distributed data parallel training, which is not supported.
    pub fn with_training_strategy(
        mut self,
        strategy: ExecutionStrategy,
    ) -> Result<Self, FusedError> {
        self.strategy.execution = Execution::of(strategy)?;
        Ok(self)
    }

    /// Returns a metric of the global norm of the gradients before clipping.
    pub fn gradient_norm(&self) -> StepMetric {
        StepMetric::new("Gradient Norm", &self.strategy.last_step, |step| {
            step.gradient_norm
        })
    }

    /// Returns a metric of the clipping coefficient of the gradients.
    pub fn clipping_coefficient(&self) -> StepMetric {
        StepMetric::new("Clipping Coefficient", &self.strategy.last_step, |step| {
            step.clipping
        })
    }

    /// Returns a metric of the loss scale.
    pub fn loss_scale(&self) -> StepMetric {
        StepMetric::new("Loss Scale", &self.strategy.last_step, |step| {
            step.loss_scale
        })
    }

    /// Loads the record of the model, as [`Learner::load_model`] does. Load it before the record of the optimizer,
    /// which refers to its parameter ids.
    ///
    /// # Panics
    ///
    /// If the record does not fit the model, as `Learner` does.
    pub fn load_model(&mut self, record: ModuleRecord) {
        self.learner.load_model(record);
    }

    /// Loads the record of the optimizer, as [`Learner::load_optim`] does. Set the config before: the
    /// record may contain adaptive state of its policies.
    ///
    /// # Panics
    ///
    /// With the message of the error of [`FusedOptimizer::load_record`](crate::FusedOptimizer::load_record) if the record can't be
    /// loaded. (`Learner::load_optim` then starts parameters with a fresh state.)
    pub fn load_optim(&mut self, record: OptimizerRecord) {
        let optimizer = checkout::optimizer(&mut self.learner);
        let model = self.model();
        let optimizer =
            record::load(record, &optimizer, &model).unwrap_or_else(|error| panic!("{error}"));
        checkout::set_optimizer(&mut self.learner, optimizer);
    }

    /// Loads the record of the learning rate scheduler, as [`Learner::load_scheduler`] does.
    pub fn load_scheduler(&mut self, record: LrSchedulerRecord) {
        self.learner.load_scheduler(record);
    }

    /// Forks the learner's model to the given device, as [`Learner::fork`] does.
    pub fn fork(&mut self, device: &Device) {
        self.learner.fork(device);
    }

    /// Returns the model, as [`Learner::model`] does.
    pub fn model(&self) -> M {
        self.learner.model().into_inner()
    }
}

/// Displays the numbers of trained and of all parameters, and with `{:#}` a line for each. Initializes lazy parameters.
impl<M: LearnerModel> Display for FusedLearner<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let model = self.model();
        let trained: HashSet<_> = list(&model)
            .into_iter()
            .filter(|it| it.param.value().is_require_grad())
            .map(|it| it.param.id())
            .collect();
        let trained = |id| trained.contains(&id).then_some((Role::Released, None));
        Display::fmt(&ParameterList::of(&model, trained, None), f)
    }
}
