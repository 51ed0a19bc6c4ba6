use std::fmt::{Display, Formatter};

use burn::config::Config;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::cast::cast;
use crate::config::FusedConfig;
use crate::fused::{FusedOptimizer, FusedReplicas, Policies};
use crate::parameters::ModelKey;

use super::error::PlanError;
use super::ladder::Ladder;
use super::named;
use super::optimizer::PlannedOptimizer;

/// How to train a model within a number of bytes: what [`Measured::choose`](crate::Measured::choose) has chosen.
///
/// It is plain: what is in it can be looked at and changed. With a config of [`backburn::optim`](crate::optim) it is a [`Config`] of Burn's, which
/// is saved as JSON and loaded. It prints as its ladder.
///
/// ```
/// # use backburn::memory::RecordingAllocator;
/// # use backburn::optim::AdamWConfig;
/// # use backburn::{Plan, Planner};
/// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
/// # #[global_allocator]
/// # static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
/// use backburn::LossScalingConfig;
/// use burn::config::Config;
///
/// # let device = Device::flex().autodiff();
/// # let init = || LinearConfig::new(8, 8).init(&device);
/// # let planner = Planner::new(init, AdamWConfig::new()).with_batch(4);
/// # let loss = |model: &burn::nn::Linear, items| model.forward(Tensor::<2>::ones([items, 8], &device)).mean();
/// # let plan = planner.measure(loss, 100_000_000)?.choose(100_000_000)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("plan.json");
/// plan.save(&file).unwrap();
/// let mut plan = Plan::<AdamWConfig>::load(&file).unwrap();
/// plan.config.loss_scaling = Some(LossScalingConfig::new());
/// let fused = plan.fuse(init)?;
/// # Ok::<(), backburn::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "O: Serialize", deserialize = "O: Deserialize<'de>"))]
pub struct Plan<O> {
    /// How to train: which blocks run twice, what waits on the host, and what was given to the
    /// [planner](super::Planner::with_config).
    pub config: FusedConfig,
    /// The optimizer, with its formats. In a file it is under the name of its type.
    #[serde(with = "named")]
    pub optimizer: O,
    /// The type of the weights; none is that of the model.
    pub weights: Option<FloatDType>,
    /// Devices that train together; with more than one, [`replicas`](Self::replicas) follows the plan.
    pub ranks: usize,
    /// Items of a micro-batch, on each device.
    pub batch: usize,
    /// Micro-batches in a step, on each device. Their gradients are added up, so a loss that is a mean is divided by their number, and that
    /// of the devices.
    pub accumulation: usize,
    /// Whether the gradients of micro-batches go [straight into the states](FusedOptimizer::accumulating_in_state) of the optimizer.
    #[serde(default)]
    pub sums_in_state: bool,
    /// Bytes at the peak where the model computes; on a CPU, of the whole process.
    pub device_bytes: usize,
    /// Those of a pass among them, as it was measured.
    pub pass_bytes: usize,
    /// In how many multiples of that they are counted: what threads compute at once differs from pass to pass, and a device does not show all.
    pub margin: f64,
    /// Bytes on the host, if that is not where the model computes.
    pub host_bytes: usize,
    /// The model that the plan is for.
    pub model: ModelKey,
    /// All ways that were looked at.
    pub ladder: Ladder,
}

impl<O: Config> Config for Plan<O> {}

impl<O: PlannedOptimizer> Plan<O> {
    /// The model that `init` makes, fused as planned.
    ///
    /// # Errors
    ///
    /// If it is another model than the one that was planned for, the plan was changed to what can't be, or the model can't be
    /// [fused](FusedOptimizer::new) or [trained so](FusedOptimizer::with_config).
    pub fn fuse<M: Module>(
        &self,
        init: impl FnOnce() -> M,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        Ok(self.fused(init)?.with_config(self.config.clone())?)
    }

    /// The same for a model that computes on another device than it is made on, as [planned](super::Planner::with_devices).
    ///
    /// # Errors
    ///
    /// As [`fuse`](Self::fuse).
    pub fn fuse_on<M: Module>(
        &self,
        init: impl FnOnce() -> M,
        device: &Device,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        let fused = self.fused(init)?;
        Ok(fused.with_config_on(self.config.clone(), device)?)
    }

    /// The model that `init` makes, on as many devices as planned.
    ///
    /// # Errors
    ///
    /// As [`fuse`](Self::fuse); if there are more or fewer devices than planned.
    pub fn replicas<M: Module + 'static>(
        &self,
        init: impl FnOnce() -> M,
        devices: &[Device],
    ) -> Result<FusedReplicas<M>, PlanError> {
        self.check_ranks(devices.len())?;
        let (model, (optimizer, policies)) = (self.model(init)?, self.optimizer()?);
        let (policies, optimizer) = policies.with_config(self.config.clone(), optimizer)?;
        let fused = FusedReplicas::with_policies(model, optimizer, policies, devices.to_vec());
        Ok(fused?)
    }

    /// A learner of the model that `init` makes, as planned. With several [`ranks`](Self::ranks) it gets their devices by its
    /// `with_training_strategy`. The batches of its data loader have [`batch`](Self::batch) items, and
    /// the builder's `grads_accumulation` is [`accumulation`](Self::accumulation).
    ///
    /// # Errors
    ///
    /// If it is another model than the one that was planned for, the plan was changed to what can't be, or the options make no
    /// sense.
    #[cfg(feature = "train")]
    pub fn learner<M>(
        &self,
        init: impl FnOnce() -> M,
        lr_scheduler: impl Into<burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler>,
    ) -> Result<crate::train::FusedLearner<M>, PlanError>
    where
        M: burn::train::LearnerModel,
        <M as burn::train::TrainStep>::Input: Clone,
    {
        let (model, (optimizer, policies)) = (self.model(init)?, self.optimizer()?);
        let learner =
            crate::train::FusedLearner::with_policies(model, optimizer, lr_scheduler, policies);
        Ok(learner.with_config(self.config.clone())?)
    }

    fn fused<M: Module>(&self, init: impl FnOnce() -> M) -> Result<FusedOptimizer<M>, PlanError> {
        self.check_ranks(1)?;
        let (optimizer, policies) = self.optimizer()?;
        let fused = FusedOptimizer::with_policies(self.model(init)?, optimizer, policies, None);
        Ok(fused?)
    }

    fn check_ranks(&self, devices: usize) -> Result<(), PlanError> {
        if devices == self.ranks {
            return Ok(());
        }
        let ranks = self.ranks;
        Err(PlanError::Unusable {
            reason: format!(
                "it is for {ranks} devices, not {devices}: `replicas` takes several, `fuse` one"
            ),
        })
    }

    /// The optimizer, and what is done with gradients for its sake.
    fn optimizer(&self) -> Result<(ModuleOptimizer, Policies), PlanError> {
        if self.sums_in_state {
            Ok(self.optimizer.in_state()?)
        } else {
            Ok((self.optimizer.build(), Policies::default()))
        }
    }

    /// The model in the type of its weights, if it is the one that was planned for.
    fn model<M: Module>(&self, init: impl FnOnce() -> M) -> Result<M, PlanError> {
        for (name, number) in [
            ("ranks", self.ranks),
            ("batch", self.batch),
            ("accumulation", self.accumulation),
        ] {
            if number == 0 {
                return Err(PlanError::Unusable {
                    reason: format!("its `{name}` is 0: set it to 1 or more, or plan again"),
                });
            }
        }
        let model = init();
        let found = ModelKey::of(&model);
        if found != self.model {
            return Err(PlanError::AnotherModel {
                planned: self.model,
                found,
            });
        }
        Ok(match self.weights {
            Some(dtype) => cast(model, dtype)?,
            None => model,
        })
    }
}

impl<O> Display for Plan<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.ladder.fmt(f)
    }
}
