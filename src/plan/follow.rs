//! Construction of trainings from a plan.

use backburn_base::ModelKey;
use burn::module::Module;
use burn::tensor::Device;

use crate::files::cast;
use crate::fused::FusedOptimizer;

use super::error::PlanError;
use super::optimizer::PlannedOptimizer;
use super::plan::Plan;

impl<O: PlannedOptimizer> Plan<O> {
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

    /// Returns an error if a number is zero.
    fn check_numbers(&self) -> Result<(), PlanError> {
        for (name, number) in [("batch", self.batch), ("accumulation", self.accumulation)] {
            if number == 0 {
                return Err(PlanError::invalid(format!(
                    "the `{name}` of the plan is 0: set it to 1 or more, or make a new plan"
                )));
            }
        }
        Ok(())
    }

    /// Creates the model in the planned type of its weights. Returns an error if it is not the planned model.
    fn model<M: Module>(&self, init: impl FnOnce() -> M) -> Result<M, PlanError> {
        self.check_numbers()?;
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
