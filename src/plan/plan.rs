use std::fmt::{Display, Formatter};

use backburn_base::ModelKey;
use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::config::FusedConfig;
use crate::files::cast;
use crate::fused::FusedOptimizer;
use crate::pass::GradientCheckpointingConfig;

use super::candidate::Candidate;
use super::error::PlanError;
use super::named;
use super::optimizer::PlannedOptimizer;
use super::search::Search;
use super::set_profile::Choice;

/// A training configuration that fits a memory budget, as returned by [`Planner::plan`](crate::Planner::plan).
///
/// It is plain data, which can be changed. With a config of [`backburn::optim`](crate::optim) it is a Burn [`Config`], which
/// can be saved as JSON and loaded. `Display` prints the candidates.
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
/// let fused = plan.fuse(init)?;
/// # Ok::<(), backburn::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    bound(serialize = "O: Serialize", deserialize = "O: Deserialize<'de>"),
    deny_unknown_fields
)]
pub struct Plan<O> {
    /// The config: recomputed blocks, offload, and the options that were passed to the
    /// [planner](super::Planner::with_config).
    pub config: FusedConfig,
    /// The optimizer, with its formats. A file contains it under the name of its type.
    #[serde(with = "named")]
    pub optimizer: O,
    /// Float type of the weights; `None` for the type of the model.
    pub weights: Option<FloatDType>,
    /// Number of items in one micro-batch (not in the whole step).
    pub batch: usize,
    /// Number of micro-batches in a step. Their gradients are summed, so divide a mean loss by their number.
    pub accumulation: usize,
    /// The budget in bytes.
    pub budget: usize,
    /// Approximate peak bytes on the compute device; on a CPU, of the whole process. Margins are included.
    pub device_bytes: usize,
    /// Approximate bytes on the host, if the model computes on another device.
    pub host_bytes: usize,
    /// The model of the plan.
    pub model: ModelKey,
    /// The candidate with the least memory for each set of techniques, and the selected candidate.
    pub candidates: Vec<Candidate>,
    /// Index of the selected candidate.
    pub taken: usize,
    /// Side effects of the plan on the training.
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
        let (set, items) = (choice.set, choice.items);
        let formatted = optimizer.formatted(set.formats());
        let keep = choice.kept.as_ref().map(|kept| kept.keep.clone());
        let config = set.config(&search.config);
        let blocks = GradientCheckpointingConfig {
            keep_activations: keep.unwrap_or_default(),
            ..config.gradient_checkpointing.clone()
        };
        let (candidates, taken) = search.candidates();
        let mut notes = Vec::new();
        if has_statistics && items < search.limits.batch {
            let batch = search.limits.batch;
            notes.push(format!(
                "batch normalization sees batches of {items} instead of {batch}"
            ));
        }
        Self {
            config: config.with_gradient_checkpointing(blocks),
            optimizer: formatted.unwrap_or_else(|| optimizer.clone()),
            weights: set.storage().dtype(),
            batch: items,
            accumulation: choice.accumulation,
            budget: search.limits.budget,
            device_bytes: choice.device,
            host_bytes: choice.host,
            model,
            candidates,
            taken: taken.unwrap_or(0),
            notes,
        }
    }

    /// Creates the planned training of the model that `init` returns.
    ///
    /// # Errors
    ///
    /// If the plan is for another model or was edited to invalid values, or if [`FusedOptimizer::new`] or
    /// [`FusedOptimizer::with_config`] fails.
    pub fn fuse<M: Module>(
        &self,
        init: impl FnOnce() -> M,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        Ok(self.fused(init)?.with_config(self.config.clone())?)
    }

    /// Creates the planned training as [`fuse`](Self::fuse) does, for a plan [with a device](super::Planner::with_device): the model
    /// computes on `device`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`fuse`](Self::fuse).
    pub fn fuse_on<M: Module>(
        &self,
        init: impl FnOnce() -> M,
        device: &Device,
    ) -> Result<FusedOptimizer<M>, PlanError> {
        let fused = self.fused(init)?;
        Ok(fused.with_config_on(self.config.clone(), device)?)
    }

    /// Creates a learner with the planned config for the model that `init` returns.
    ///
    /// Use batches of [`batch`](Self::batch) items in the data loader, and set the builder's `grads_accumulation` to
    /// [`accumulation`](Self::accumulation).
    ///
    /// The bytes of the plan do not include the data loader (batches prepared by its workers), metrics, validation, display, and the
    /// checkpoints of Burn (weights and states in f32, until they are written): leave a margin for them.
    ///
    /// # Errors
    ///
    /// If the plan is for another model or was edited to invalid values.
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
        let (model, optimizer) = (self.model(init)?, self.optimizer.build());
        let learner = crate::train::FusedLearner::new(model, optimizer, lr_scheduler);
        Ok(learner.with_config(self.config.clone())?)
    }

    fn fused<M: Module>(&self, init: impl FnOnce() -> M) -> Result<FusedOptimizer<M>, PlanError> {
        Ok(FusedOptimizer::new(
            self.model(init)?,
            self.optimizer.build(),
        )?)
    }

    /// Creates the model in the planned type of its weights. Returns an error if it is not the planned model.
    fn model<M: Module>(&self, init: impl FnOnce() -> M) -> Result<M, PlanError> {
        for (name, number) in [("batch", self.batch), ("accumulation", self.accumulation)] {
            if number == 0 {
                return Err(PlanError::invalid(format!(
                    "the `{name}` of the plan is 0: set it to 1 or more, or make a new plan"
                )));
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
        let mega = |bytes: usize| bytes as f64 / 1e6;
        let items = self.batch.saturating_mul(self.accumulation);
        writeln!(
            f,
            "budget {:.2} MB, {items} items in a step; peaks are about:",
            mega(self.budget)
        )?;
        for (index, candidate) in self.candidates.iter().enumerate() {
            let is_taken = index == self.taken;
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
