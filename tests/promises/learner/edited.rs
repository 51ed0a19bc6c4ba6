//! A `TrainStep` that edits the gradients that it returns: a mask, noise, a removed gradient.

use burn::train::MultiDeviceOptim;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    Replace,
    Scale,
    Unwrap,
    Remove,
    /// Exchanges two gradients of the same shape.
    Swap,
    /// Gives a frozen parameter a gradient.
    Add,
    DropAll,
    /// Returns a gradient of another module only.
    Other,
    Nothing,
}

/// Edits its gradients after the backward pass.
#[derive(Module, Debug)]
struct Edited {
    inner: Regression,
    #[module(skip)]
    edit: Edit,
}

impl Edited {
    fn edited(&self, mut gradients: GradientsParams) -> GradientsParams {
        let id = self.inner.output.weight.id;
        match self.edit {
            Edit::Nothing => {}
            Edit::DropAll => return GradientsParams::new(),
            Edit::Other => {
                let mut other = GradientsParams::new();
                other.register(ParamId::new(), Tensor::<1>::ones([3], &Device::flex()));
                return other;
            }
            Edit::Remove => drop(gradients.remove::<2>(id)),
            Edit::Swap => {
                let ids = [&self.inner.norm.gamma, &self.inner.norm.beta].map(|it| it.id);
                let [first, second] = ids.map(|id| gradients.remove::<1>(id).unwrap());
                gradients.register(ids[0], second);
                gradients.register(ids[1], first);
            }
            Edit::Add => {
                let id = self.inner.input.weight.id;
                gradients.register(id, Tensor::<2>::ones([2, 6], &Device::flex()));
            }
            Edit::Replace => gradients.register(id, Tensor::<2>::ones([6, 1], &Device::flex())),
            Edit::Scale => {
                if let Some(gradient) = gradients.remove::<2>(id) {
                    gradients.register(id, gradient * 0.5);
                }
            }
            Edit::Unwrap => {
                let norm = gradients.get::<2>(id).unwrap().abs().max();
                assert!(norm.into_scalar::<f32>() < 1e9);
            }
        }
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

fn edited(edit: Edit) -> Edited {
    let mut inner = Regression::init();
    if edit == Edit::Add {
        inner.input = inner.input.freeze();
    }
    Edited { inner, edit }
}

#[test]
fn learner_gradient_edited_by_train_step_is_an_error() {
    let one: fn() -> ExecutionStrategy = || ExecutionStrategy::single(Device::flex());
    let two: fn() -> ExecutionStrategy =
        || ExecutionStrategy::multi(vec![Device::flex(); 2], MultiDeviceOptim::OptimSharded);
    let exact = FusedConfig::exact(1.0);
    for edit in [
        Edit::Replace,
        Edit::Remove,
        Edit::Swap,
        Edit::Add,
        Edit::DropAll,
        Edit::Other,
    ] {
        for (strategy, config, accumulation) in [
            (None, FusedConfig::new(), None),
            (None, FusedConfig::new(), Some(2)),
            (Some(one), exact.clone(), None),
            (Some(two), FusedConfig::new(), None),
        ] {
            let run = Run {
                strategy,
                config,
                accumulation,
                ..Run::new(1)
            };
            let result = run.fused(edited(edit), folder().path());
            let error = result.error.expect("the training failed").to_string();
            let path = match edit {
                Edit::DropAll | Edit::Other => "`inner.",
                Edit::Swap => "`inner.norm.gamma`",
                Edit::Add => "`inner.input.weight`",
                _ => "`inner.output.weight`",
            };
            assert_says(&error, path);
            assert_says(&error, "with_hook");
        }
    }
}

#[test]
fn learner_gradient_read_in_train_step_points_to_hooks() {
    for edit in [Edit::Scale, Edit::Unwrap] {
        let message = panic_of(|| Run::new(1).fused(edited(edit), folder().path()));
        assert_says(&message, "`inner.output.weight`");
        assert_says(&message, "FusedLearner::with_hook");
    }
}

/// Stock Burn and fused training hand over the same gradients if the step does not edit them.
#[test]
fn returned_gradient_of_released_parameter_is_an_error() {
    for device in cpus() {
        let batch = Points::ones(&device);
        for edit in [
            Edit::Replace,
            Edit::Remove,
            Edit::Add,
            Edit::Scale,
            Edit::Nothing,
            Edit::DropAll,
            Edit::Other,
        ] {
            let mut inner = Regression::init_on(&device);
            if edit == Edit::Add {
                inner.input = inner.input.freeze();
            }
            let model = Edited { inner, edit };
            let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
            let mut step = || {
                fused.step_with_backward(1e-3, |model| {
                    let output = TrainStep::step(model, batch.clone());
                    ((), output.grads)
                })
            };
            let path = match edit {
                Edit::Add => "inner.input.weight".to_string(),
                _ => "inner.output.weight".to_string(),
            };
            match edit {
                Edit::Scale => assert_says(&panic_of(&mut step), &path),
                Edit::Replace | Edit::Remove | Edit::Add => {
                    assert_eq!(step(), Err(FusedError::GradientReturned { path }));
                }
                _ => assert_eq!((step(), step()), (Ok(()), Ok(()))),
            }
        }
    }
}
