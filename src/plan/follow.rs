//! Trainings that follow a plan.

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use crate::cast::cast;
use crate::fused::{FusedOptimizer, FusedReplicas, Policies};
use crate::parameters::ModelKey;

use super::error::PlanError;
use super::optimizer::PlannedOptimizer;
use super::plan::Plan;

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
    /// The bytes of the plan do not include what the data loader holds (the batches that its workers prepare), nor what metrics, the
    /// validation and the display take: leave room for them.
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
        self.check_numbers()?;
        if devices == self.ranks {
            return Ok(());
        }
        let ranks = self.ranks;
        Err(PlanError::Unusable {
            reason: format!(
                "its number of devices is {ranks}, not {devices}: `replicas` takes several, `fuse` one"
            ),
        })
    }

    /// Refuses numbers that are zero.
    fn check_numbers(&self) -> Result<(), PlanError> {
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
        Ok(())
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
