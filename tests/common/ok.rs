//! Calls of a training that are expected to succeed: `step_ok` is `step`, and panics with the error.

use std::borrow::BorrowMut;

use backburn::optim::{AccumulateInState, ElementWiseOptimizer};
use backburn::train::FusedLearner;
use backburn::{FusedConfig, FusedError, FusedOptimizer, FusedReplicas, Loss};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;
use burn::train::{ExecutionStrategy, LearnerModel, TrainStep};

#[track_caller]
fn ok<R>(result: Result<R, FusedError>) -> R {
    match result {
        Ok(output) => output,
        Err(error) => panic!("{error}"),
    }
}

/// A front end that trains a model.
pub trait TrainerOk: Sized {
    type Model;

    fn with_config_ok(self, config: FusedConfig) -> Self;
    fn change_model_ok(&mut self, change: impl FnOnce(Self::Model) -> Self::Model);
    fn load_record_ok(&mut self, record: OptimizerRecord);
    fn step_accumulated_ok(&mut self, learning_rate: impl Into<ModuleLearningRate>);
}

macro_rules! trainer_ok {
    ($trainer:ident: $($bound:tt)+) => {
        impl<M: $($bound)+> TrainerOk for $trainer<M> {
            type Model = M;

            #[track_caller]
            fn with_config_ok(self, config: FusedConfig) -> Self {
                ok(self.with_config(config))
            }

            #[track_caller]
            fn change_model_ok(&mut self, change: impl FnOnce(M) -> M) {
                ok(self.change_model(change));
            }

            #[track_caller]
            fn load_record_ok(&mut self, record: OptimizerRecord) {
                ok(self.load_record(record));
            }

            #[track_caller]
            fn step_accumulated_ok(&mut self, learning_rate: impl Into<ModuleLearningRate>) {
                ok(self.step_accumulated(learning_rate));
            }
        }
    };
}

trainer_ok!(FusedOptimizer: Module);
trainer_ok!(FusedReplicas: Module + 'static);

/// A training on one device.
pub trait FusedOk<M: Module>: BorrowMut<FusedOptimizer<M>> + Into<FusedOptimizer<M>> {
    #[track_caller]
    fn new_ok(model: M, optimizer: ModuleOptimizer) -> FusedOptimizer<M> {
        ok(FusedOptimizer::new(model, optimizer))
    }

    #[track_caller]
    fn accumulating_in_state_ok(
        model: M,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
    ) -> FusedOptimizer<M> {
        ok(FusedOptimizer::accumulating_in_state(model, optimizer))
    }

    #[track_caller]
    fn with_config_on_ok(self, config: FusedConfig, device: &Device) -> FusedOptimizer<M> {
        ok(self.into().with_config_on(config, device))
    }

    #[track_caller]
    fn step_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> L {
        ok(self.borrow_mut().step(learning_rate, forward))
    }

    #[track_caller]
    fn step_repeatable_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> L {
        ok(self.borrow_mut().step_repeatable(learning_rate, forward))
    }

    #[track_caller]
    fn accumulate_ok<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        ok(self.borrow_mut().accumulate(forward))
    }

    #[track_caller]
    fn dry_run_ok<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        ok(self.borrow_mut().dry_run(forward))
    }

    #[track_caller]
    fn step_with_backward_ok<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> R {
        ok(self.borrow_mut().step_with_backward(learning_rate, train))
    }
}

impl<M: Module> FusedOk<M> for FusedOptimizer<M> {}

/// A training on several devices.
pub trait ReplicasOk<M: Module + 'static>: BorrowMut<FusedReplicas<M>> {
    #[track_caller]
    fn new_ok(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> FusedReplicas<M> {
        ok(FusedReplicas::new(model, optimizer, devices))
    }

    #[track_caller]
    fn step_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        ok(self.borrow_mut().step(learning_rate, batches, forward))
    }

    #[track_caller]
    fn step_repeatable_ok<B: Clone + Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        let replicas = self.borrow_mut();
        ok(replicas.step_repeatable(learning_rate, batches, forward))
    }

    #[track_caller]
    fn accumulate_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        ok(self.borrow_mut().accumulate(batches, forward))
    }
}

impl<M: Module + 'static> ReplicasOk<M> for FusedReplicas<M> {}

pub trait LearnerOk<M: LearnerModel>: Into<FusedLearner<M>>
where
    <M as TrainStep>::Input: Clone,
{
    #[track_caller]
    fn with_config_ok(self, config: FusedConfig) -> FusedLearner<M> {
        ok(self.into().with_config(config))
    }

    #[track_caller]
    fn with_training_strategy_ok(self, strategy: ExecutionStrategy) -> FusedLearner<M> {
        ok(self.into().with_training_strategy(strategy))
    }
}

impl<M: LearnerModel> LearnerOk<M> for FusedLearner<M> where <M as TrainStep>::Input: Clone {}
