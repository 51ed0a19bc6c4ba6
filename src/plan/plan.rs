use std::fmt::{Display, Formatter};

use burn::config::Config;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::cast::try_cast;
use crate::config::FusedConfig;
use crate::fused::{FusedOptimizer, FusedReplicas, Policies};
use crate::parameters::ModelKey;
use crate::pass::GradientCheckpointingConfig;
use crate::replica::Ownership;

use super::candidate::Candidate;
use super::error::PlanError;
use super::named;
use super::optimizer::PlannedOptimizer;
use super::search::{Choice, Search};

/// How to train a model within a number of bytes, as [`Planner::plan`](crate::Planner::plan) returns it.
///
/// It is plain data, which can be changed. With a config of [`backburn::optim`](crate::optim) it is a [`Config`] of Burn's, which
/// is saved as JSON and loaded. It prints its candidates.
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
/// # let plan = planner.plan(loss, 100_000_000)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("plan.json");
/// plan.save(&file).unwrap();
/// let mut plan = Plan::<AdamWConfig>::load(&file).unwrap();
/// plan.config.loss_scaling = Some(LossScalingConfig::new());
/// let fused = plan.fuse(init);
/// # Ok::<(), backburn::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "O: Serialize", deserialize = "O: Deserialize<'de>"))]
pub struct Plan<O> {
    /// How to train: which blocks are recomputed, what is offloaded, and what was passed to the
    /// [planner](super::Planner::with_config).
    pub config: FusedConfig,
    /// The optimizer, with its formats. In a file it is under the name of its type.
    #[serde(with = "named")]
    pub optimizer: O,
    /// The type of the weights; `None` for that of the model.
    pub weights: Option<FloatDType>,
    /// Devices that train together; with more than one, [`replicas`](Self::replicas) follows the plan.
    pub ranks: usize,
    /// Items of a micro-batch, on each device.
    pub batch: usize,
    /// Micro-batches in a step, on each device. Their gradients are accumulated, so a loss that is a mean is divided by their number, and that
    /// of the devices.
    pub accumulation: usize,
    /// `true` if the gradients of micro-batches go [straight into the states](FusedOptimizer::accumulating_in_state) of the optimizer.
    #[serde(default)]
    pub sums_in_state: bool,
    /// Bytes that the training may take.
    pub budget: usize,
    /// About the bytes at the peak where the model computes; on a CPU, of the whole process. Margins are included.
    pub device_bytes: usize,
    /// About the bytes on the host, if that is not where the model computes.
    pub host_bytes: usize,
    /// The model that the plan is for.
    pub model: ModelKey,
    /// The smallest candidate of each set of techniques, and the one that was taken.
    pub candidates: Vec<Candidate>,
    /// Index of the candidate that was taken.
    pub taken: usize,
    /// What else the plan changes in the training.
    pub notes: Vec<String>,
}

impl<O: Config> Config for Plan<O> {}

impl<O: PlannedOptimizer> Plan<O> {
    pub(super) fn of(
        search: &Search,
        choice: &Choice<'_>,
        optimizer: &O,
        model: ModelKey,
        has_statistics: bool,
    ) -> Self {
        let (set, split, items) = (choice.set, choice.split, choice.items);
        let (states, weights) = set.formats();
        let formatted = optimizer.formatted(states, weights);
        let keep = choice.kept.as_ref().map(|kept| kept.keep.clone());
        let config = set.config(&search.config);
        let blocks = GradientCheckpointingConfig {
            keep_activations: keep.unwrap_or_default(),
            ..config.gradient_checkpointing.clone()
        };
        let config = config.with_gradient_checkpointing(blocks);
        let ownership = match split.ranks {
            1 => config.ownership,
            _ => Ownership::BySize,
        };
        let (candidates, taken) = search.candidates();
        let mut notes = Vec::new();
        if has_statistics && items < search.batch {
            let batch = search.batch;
            notes.push(format!(
                "batch normalization sees batches of {items} instead of {batch}"
            ));
        }
        Self {
            config: config.with_ownership(ownership),
            optimizer: formatted.unwrap_or_else(|| optimizer.clone()),
            weights: choice.storage.dtype(),
            ranks: split.ranks,
            batch: items,
            accumulation: split.accumulation,
            sums_in_state: set.sums_in_state(split),
            budget: search.budget,
            device_bytes: choice.device,
            host_bytes: choice.host,
            model,
            candidates,
            taken: taken.unwrap_or(0),
            notes,
        }
    }

    /// The model that `init` makes, fused as planned.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_fuse`](Self::try_fuse) returns.
    pub fn fuse<M: Module>(&self, init: impl FnOnce() -> M) -> FusedOptimizer<M> {
        self.try_fuse(init)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`fuse`](Self::fuse).
    ///
    /// # Errors
    ///
    /// If it is another model than the one that was planned for, the plan was changed to what can't be, or the model can't be
    /// [fused](FusedOptimizer::try_new) or [trained so](FusedOptimizer::try_with_config).
    pub fn try_fuse<M: Module>(
        &self,
        init: impl FnOnce() -> M,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        Ok(self.fused(init)?.try_with_config(self.config.clone())?)
    }

    /// The same for a model that computes on another device than it is made on, as [planned](super::Planner::with_devices).
    ///
    /// # Errors
    ///
    /// As [`try_fuse`](Self::try_fuse).
    pub fn try_fuse_on<M: Module>(
        &self,
        init: impl FnOnce() -> M,
        device: &Device,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        let fused = self.fused(init)?;
        Ok(fused.try_with_config_on(self.config.clone(), device)?)
    }

    /// The model that `init` makes, on as many devices as planned.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_replicas`](Self::try_replicas) returns.
    pub fn replicas<M: Module + 'static>(
        &self,
        init: impl FnOnce() -> M,
        devices: &[Device],
    ) -> FusedReplicas<M> {
        self.try_replicas(init, devices)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`replicas`](Self::replicas).
    ///
    /// # Errors
    ///
    /// As [`try_fuse`](Self::try_fuse); if there are more or fewer devices than planned.
    pub fn try_replicas<M: Module + 'static>(
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
    /// The bytes of the plan do not include what the data loader holds (the batches that its workers prepare), nor what metrics, the
    /// validation and the display take: leave room for them.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_learner`](Self::try_learner) returns.
    #[cfg(feature = "train")]
    pub fn learner<M>(
        &self,
        init: impl FnOnce() -> M,
        lr_scheduler: impl Into<burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler>,
    ) -> crate::train::FusedLearner<M>
    where
        M: burn::train::LearnerModel,
        <M as burn::train::TrainStep>::Input: Clone,
    {
        self.try_learner(init, lr_scheduler)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`learner`](Self::learner).
    ///
    /// # Errors
    ///
    /// If it is another model than the one that was planned for, the plan was changed to what can't be, or the options make no
    /// sense.
    #[cfg(feature = "train")]
    pub fn try_learner<M>(
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
        Ok(learner.try_with_config(self.config.clone())?)
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
            Some(dtype) => try_cast(model, dtype)?,
            None => model,
        })
    }
}

impl<O> Display for Plan<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mega = |bytes: usize| bytes as f64 / 1e6;
        let items = self.ranks * self.batch * self.accumulation;
        writeln!(
            f,
            "budget {:.2} MB, {items} items in a step; peaks are about:",
            mega(self.budget)
        )?;
        for (place, candidate) in self.candidates.iter().enumerate() {
            let is_taken = place == self.taken;
            let missing = candidate.device_bytes.saturating_sub(self.budget);
            write!(f, "{} {candidate}", if is_taken { '>' } else { ' ' })?;
            match missing {
                0 => writeln!(f)?,
                missing => writeln!(f, ", {:.2} MB too many", mega(missing))?,
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}
