//! A `TrainStep` that edits the gradients that it returns: a mask, noise, a removed gradient.

use super::*;

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
    let inner = Regression::init();
    Edited { inner, unwraps }
}

#[test]
fn learner_gradient_registered_by_train_step_is_an_error() {
    let one: fn() -> ExecutionStrategy = || ExecutionStrategy::single(Device::flex());
    for strategy in [None, Some(one)] {
        let run = Run {
            strategy,
            ..Run::new(1)
        };
        let result = run.fused(edited(false), folder().path());
        let error = result.error.expect("the training failed").to_string();
        assert_says(&error, "`inner.output.weight`");
        assert_says(&error, "with_hook");
    }
}

#[test]
fn learner_unwrapped_gradient_points_to_hooks() {
    let message = panic_of(|| Run::new(1).fused(edited(true), folder().path()));
    assert_says(&message, "FusedLearner::with_hook");
}

#[test]
fn returned_gradient_of_released_parameter_is_an_error() {
    let batch = Points::ones(&Device::flex().autodiff());
    let mut fused = FusedOptimizer::new_ok(edited(false), AdamWConfig::new().init());
    let result = fused.step_with_backward(1e-3, |model| {
        let output = TrainStep::step(model, batch.clone());
        ((), output.grads)
    });
    let path = "inner.output.weight".to_string();
    assert_eq!(result, Err(FusedError::GradientReturned { path }));
}
