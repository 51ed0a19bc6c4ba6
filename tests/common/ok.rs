//! Calls of a training that are expected to succeed: `step_ok` is `step`, and panics with the error.

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
pub trait FusedOk: TrainerOk {
    fn new_ok(model: Self::Model, optimizer: ModuleOptimizer) -> Self;
    fn accumulating_in_state_ok(
        model: Self::Model,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
    ) -> Self;
    fn with_config_on_ok(self, config: FusedConfig, device: &Device) -> Self;
    fn step_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&Self::Model) -> L,
    ) -> L;
    fn step_repeatable_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&Self::Model) -> L,
    ) -> L;
    fn accumulate_ok<L: Loss>(&mut self, forward: impl FnOnce(&Self::Model) -> L) -> L;
    fn dry_run_ok<L: Loss>(&mut self, forward: impl FnOnce(&Self::Model) -> L) -> L;
    fn step_with_backward_ok<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        train: impl FnMut(&Self::Model) -> (R, GradientsParams),
    ) -> R;
}

impl<M: Module> FusedOk for FusedOptimizer<M> {
    #[track_caller]
    fn new_ok(model: M, optimizer: ModuleOptimizer) -> Self {
        ok(Self::new(model, optimizer))
    }

    #[track_caller]
    fn accumulating_in_state_ok(
        model: M,
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
    ) -> Self {
        ok(Self::accumulating_in_state(model, optimizer))
    }

    #[track_caller]
    fn with_config_on_ok(self, config: FusedConfig, device: &Device) -> Self {
        ok(self.with_config_on(config, device))
    }

    #[track_caller]
    fn step_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl FnOnce(&M) -> L,
    ) -> L {
        ok(self.step(learning_rate, forward))
    }

    #[track_caller]
    fn step_repeatable_ok<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> L {
        ok(self.step_repeatable(learning_rate, forward))
    }

    #[track_caller]
    fn accumulate_ok<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        ok(self.accumulate(forward))
    }

    #[track_caller]
    fn dry_run_ok<L: Loss>(&mut self, forward: impl FnOnce(&M) -> L) -> L {
        ok(self.dry_run(forward))
    }

    #[track_caller]
    fn step_with_backward_ok<R>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        train: impl FnMut(&M) -> (R, GradientsParams),
    ) -> R {
        ok(self.step_with_backward(learning_rate, train))
    }
}

/// A training on several devices.
pub trait ReplicasOk: TrainerOk {
    fn new_ok(
        model: Self::Model,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> Self;
    fn step_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&Self::Model, B) -> L + Send + Sync + 'static,
    ) -> Vec<L>;
    fn step_repeatable_ok<B: Clone + Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&Self::Model, B) -> L + Send + Sync + 'static,
    ) -> Vec<L>;
    fn accumulate_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&Self::Model, B) -> L + Send + Sync + 'static,
    ) -> Vec<L>;
}

impl<M: Module + 'static> ReplicasOk for FusedReplicas<M> {
    #[track_caller]
    fn new_ok(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> Self {
        ok(Self::new(model, optimizer, devices))
    }

    #[track_caller]
    fn step_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        ok(self.step(learning_rate, batches, forward))
    }

    #[track_caller]
    fn step_repeatable_ok<B: Clone + Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        ok(self.step_repeatable(learning_rate, batches, forward))
    }

    #[track_caller]
    fn accumulate_ok<B: Send + 'static, L: Loss + Send + 'static>(
        &mut self,
        batches: impl IntoIterator<Item = B>,
        forward: impl Fn(&M, B) -> L + Send + Sync + 'static,
    ) -> Vec<L> {
        ok(self.accumulate(batches, forward))
    }
}

/// A learner.
pub trait LearnerOk {
    fn with_config_ok(self, config: FusedConfig) -> Self;
    fn with_training_strategy_ok(self, strategy: ExecutionStrategy) -> Self;
}

impl<M: LearnerModel> LearnerOk for FusedLearner<M>
where
    <M as TrainStep>::Input: Clone,
{
    #[track_caller]
    fn with_config_ok(self, config: FusedConfig) -> Self {
        ok(self.with_config(config))
    }

    #[track_caller]
    fn with_training_strategy_ok(self, strategy: ExecutionStrategy) -> Self {
        ok(self.with_training_strategy(strategy))
    }
}
