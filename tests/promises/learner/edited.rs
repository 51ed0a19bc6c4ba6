//! A `TrainStep` that edits the gradients that it returns: a mask, noise, a removed gradient.

use backburn::train::{FusedLearner, LaunchFused};

use super::*;
use crate::common::*;

/// Edits its gradients after the backward pass.
#[derive(Module, Debug)]
struct Edited {
    inner: Regression,
    unwraps: bool,
}

impl Edited {
    fn edited(&self, mut gradients: GradientsParams) -> GradientsParams {
        let weight = &self.inner.output.weight;
        let gradient = gradients.remove::<2>(weight.id);
        let gradient = match self.unwraps {
            true => gradient.unwrap(),
            false => Tensor::ones([6, 1], &Device::flex()),
        };
        gradients.register(weight.id, gradient * 0.5);
        gradients
    }
}

impl TrainStep for Edited {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let mut output = TrainStep::step(&self.inner, batch);
        output.grads = self.edited(output.grads);
        output
    }
}

impl_inference_step!(Edited, Points, inner);

fn edited(unwraps: bool) -> Edited {
    let inner = copy(&Regression::init(), Regression::init);
    Edited { inner, unwraps }
}

#[test]
fn learner_gradient_registered_by_train_step_is_an_error() {
    for strategy in [None, Some(ExecutionStrategy::single(Device::flex()))] {
        let run = Run::new(1);
        let folder = tempfile::tempdir().unwrap();
        let mut learner =
            FusedLearner::new(edited(false), run.optimizer.clone(), run.scheduler.clone());
        if let Some(strategy) = strategy {
            learner = learner.with_training_strategy_ok(strategy);
        }
        let result = run.training(folder.path()).launch_fused(learner);
        let error = result.error.expect("the training failed").to_string();
        assert_says(&error, "`inner.output.weight`");
        assert_says(&error, "with_hook");
    }
}

#[test]
fn learner_unwrapped_gradient_points_to_hooks() {
    let run = Run::new(1);
    let folder = tempfile::tempdir().unwrap();
    let learner = FusedLearner::new(edited(true), run.optimizer.clone(), run.scheduler.clone());
    let launch = || run.training(folder.path()).launch_fused(learner);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch)).err();
    let panic = panic.expect("the training panicked");
    let message = panic.downcast_ref::<String>().unwrap();
    assert_says(&message, "FusedLearner::with_hook");
}

#[test]
fn returned_gradient_of_released_parameter_is_an_error() {
    let model = edited(false);
    let batch = Points::ones(&Device::flex().autodiff());
    let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
    let result = fused.step_with_backward(1e-3, |model| {
        let output = TrainStep::step(model, batch.clone());
        ((), output.grads)
    });
    let path = "inner.output.weight".to_string();
    assert_eq!(result, Err(FusedError::GradientReturned { path }));
}
