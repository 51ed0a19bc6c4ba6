//! A fused launch clips, scales and calls hooks with the results of a stock training that does the same.

use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::train::TrainOutput;
use burn::train::metric::{Metric, MetricMetadata, Numeric};

use super::*;
use crate::policies::{norm, scale};

const MAX_NORM: f64 = 0.5;

/// Under stock Burn, clips by the global norm before the update. Fused training does not call
/// `optimize`.
#[derive(Module, Debug)]
struct Clipped {
    inner: Regression,
}

impl Clipped {
    fn init() -> Self {
        Self {
            inner: Regression::init(),
        }
    }
}

impl TrainStep for Clipped {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let output = self.inner.output(batch);
        let loss = scale_loss(output.loss.clone());
        TrainOutput::new(self, loss.backward(), output)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: ModuleLearningRate,
        mut gradients: GradientsParams,
    ) -> Self {
        let coefficient = (MAX_NORM / norm(&self, &mut gradients)).min(1.0);
        scale(&self, &mut gradients, coefficient);
        optimizer.step(learning_rate, self, gradients)
    }
}

impl_inference_step!(Clipped, Points, inner);

#[test]
fn exact_clipping_equals_clipping_in_optimize_of_stock() {
    let scaling = LossScalingConfig::new();
    for accumulation in [None, Some(2)] {
        let results = assert_same_training(Clipped::init, || Run {
            accumulation,
            config: FusedConfig::exact(MAX_NORM).with_loss_scaling(Some(scaling)),
            ..Run::new(2)
        });
        assert!(results[1].error.is_none());
    }
}

#[test]
fn norm_coefficient_and_scale_are_logged() {
    let scaling = LossScalingConfig::new().with_initial_scale(4096.0);
    let run = Run {
        config: FusedConfig::exact(1e-3).with_loss_scaling(Some(scaling)),
        ..Run::new(1)
    };
    let (learner, folder) = (run.learner(Clipped::init()), folder());
    let training = run
        .training(folder.path())
        .metric_train_numeric(learner.gradient_norm())
        .metric_train_numeric(learner.clipping_coefficient())
        .metric_train_numeric(learner.loss_scale());
    training.launch_fused(learner);
    let [scales, norms, coefficients] = [
        "Loss_Scale.log",
        "Gradient_Norm.log",
        "Clipping_Coefficient.log",
    ]
    .map(|metric| logged(folder.path(), metric));
    assert_eq!(scales.last(), Some(&4096.0));
    assert!(norms.iter().any(|norm| *norm > 1e-3), "{norms:?}");
    assert!(coefficients.iter().any(|by| *by < 1.0), "{coefficients:?}");
}

#[test]
fn metric_of_step_without_number_is_not_available() {
    let mut norm = Run::new(1).learner(Regression::init()).gradient_norm();
    let metadata = MetricMetadata {
        progress: burn::data::dataloader::Progress {
            items_processed: 1,
            items_total: 1,
            unit: None,
        },
        iteration: None,
        lr: None,
    };
    let entry = norm.update(&(), &metadata).unwrap();
    assert_eq!(
        (entry.formatted, norm.value().is_none()),
        ("epoch NaN - batch N/A".to_string(), true)
    );
}

/// The loss of some batches reaches no parameter.
#[derive(Module, Debug)]
struct Unreached {
    inner: Regression,
    /// Runs no backward pass for such a batch.
    #[module(skip)]
    leaves_out: bool,
}

impl TrainStep for Unreached {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let sum: f32 = batch.x.clone().sum().into_scalar();
        let output = self.inner.output(batch);
        let loss = match (sum * 1e3) as i64 % 2 {
            0 => output.loss.clone(),
            _ if self.leaves_out => {
                return TrainOutput {
                    grads: GradientsParams::new(),
                    item: output,
                };
            }
            _ => output.loss.clone().detach().require_grad(),
        };
        TrainOutput::new(self, scale_loss(loss).backward(), output)
    }
}

impl_inference_step!(Unreached, Points, inner);

#[test]
fn scaling_allows_a_batch_that_is_left_out() {
    let initial = Regression::init();
    let trained = |scaling| {
        let run = Run {
            config: FusedConfig::new().with_loss_scaling(scaling),
            ..Run::new(2)
        };
        let inner = copy(&initial, Regression::init);
        let learner = run.learner(Unreached {
            inner,
            leaves_out: true,
        });
        let result = run.training(folder().path()).launch_fused(learner);
        assert!(
            result.error.is_none(),
            "{:?}",
            result.error.map(|it| it.to_string())
        );
        assert_changed(&initial, &result.model.inner, |_| true);
        result.model
    };
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        let scaling = LossScalingConfig::new()
            .with_overflow(overflow)
            .with_growth_interval(None);
        assert_equal_weights(&trained(None), &trained(Some(scaling)));
    }
}

/// With a skipped step there are two passes, which measure nothing in such a batch.
#[test]
fn lagged_norm_stays_after_step_without_gradient() {
    let initial = Regression::init();
    let scaling = LossScalingConfig::new()
        .with_initial_scale(1.0)
        .with_growth_interval(None);
    let trained = |scaling| {
        let run = Run {
            config: FusedConfig::lagged(0.1).with_loss_scaling(scaling),
            ..Run::new(2)
        };
        let inner = copy(&initial, Regression::init);
        let learner = run.learner(Unreached {
            inner,
            leaves_out: false,
        });
        let result = run.training(folder().path()).launch_fused(learner);
        assert!(result.error.is_none());
        result.model
    };
    assert_equal_weights(&trained(None), &trained(Some(scaling)));
}

/// Returns the error of a training of one epoch that changes no parameter.
#[track_caller]
fn error_of<M: OnPoints>(run: &Run, learner: FusedLearner<M>) -> String {
    let before = learner.model();
    let result = run.training(folder().path()).launch_fused(learner);
    assert_kept(&before, &result.model, |_| true);
    result.error.expect("the training failed").to_string()
}

#[test]
fn hook_ends_training_with_its_error() {
    let run = Run::new(1);
    let learner = run
        .learner(Clipped::init())
        .with_hook(ParamGroup::from_path("inner.output.bias"), Poison)
        .with_hook(ParamGroup::all(), AnomalyCheck);
    let error = error_of(&run, learner);
    assert_says(&error, "`inner.output.bias` is not finite");
}

/// A hook that makes a gradient infinite.
struct Poison;

impl GradientHook for Poison {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        GradientFlow::Continue(gradient.full_like(f32::INFINITY))
    }
}

#[test]
fn unscaled_loss_ends_training_before_first_update() {
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        for accumulation in [None, Some(2)] {
            let scaling = LossScalingConfig::new().with_overflow(overflow);
            let run = Run {
                accumulation,
                config: FusedConfig::scaling(scaling),
                ..Run::new(2)
            };
            let error = error_of(&run, run.learner(Regression::init()));
            assert_says(&error, "scale_loss");
        }
    }
}

#[test]
fn norm_that_is_not_finite_ends_training_before_update() {
    let mut model = Clipped::init();
    let weight = model.inner.output.weight;
    model.inner.output.weight = weight.map(|it| (it * f32::INFINITY).detach().require_grad());
    let run = Run {
        config: FusedConfig::exact(1.0),
        ..Run::new(2)
    };
    let error = error_of(&run, run.learner(model));
    assert_says(&error, "global norm");
}

#[test]
fn checkpoint_restores_loss_scale_under_any_interval() {
    let folder = folder();
    // Five steps an epoch: the scale doubles twice in the first, and once in the second.
    for (epoch, interval, expected) in [
        (1, 2, [32.0, 64.0]), // One good step is behind it.
        (2, 2, [256.0, 256.0]),
        (2, 1000, [32.0, 32.0]),
    ] {
        let scaling = LossScalingConfig::new()
            .with_initial_scale(8.0)
            .with_growth_interval(Some(interval));
        let run = Run {
            resume: (epoch == 2).then_some(1),
            config: FusedConfig::scaling(scaling),
            ..Run::new(epoch)
        };
        let model = run.in_way(true, Clipped::init(), folder.path());
        let file = folder.path().join(format!("checkpoint/optim-{epoch}.bpk"));
        let mut fused = FusedOptimizer::new(model.train(), AdamWConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap();
        fused
            .load_record(OptimizerRecord::load(file).unwrap())
            .unwrap();
        let device = &Device::flex().autodiff();
        let scales = expected.map(|_| {
            fused
                .step_repeatable(0.1, |model| model.inner.output(Points::ones(device)).loss)
                .unwrap();
            fused.last_step().loss_scale.unwrap()
        });
        assert_eq!(scales, expected, "epoch {epoch}, interval {interval}");
    }
}

#[test]
fn accumulation_in_state_equals_loop() {
    let sgd = || optim::SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let initial = Regression::init();
    let run = Run {
        accumulation: Some(2),
        scheduler: ConstantLr::new(0.01).into(),
        optimizer: sgd().init(),
        ..Run::new(2)
    };
    // Five batches an epoch: the last group of each is short.
    let stock = run.in_way(false, copy(&initial, Regression::init), folder().path());
    let model = copy(&initial, Regression::init);
    let learner =
        FusedLearner::accumulating_in_state(model, sgd().build(), ConstantLr::new(0.01)).unwrap();
    let fused = run.training(folder().path()).launch_fused(learner);
    assert_near_weights(&stock, &fused.model, 1e-5, 1e-5);
    assert_changed(&initial, &fused.model, |_| true);
}

#[test]
fn norm_or_accumulation_of_zero_is_refused() {
    let learner = || Run::new(1).learner(Regression::init());
    let message = panic_of(|| drop(learner().with_config(FusedConfig::exact(0.0)).unwrap()));
    assert_says(&message, "must be positive");
    let run = Run {
        accumulation: Some(0),
        ..Run::new(1)
    };
    let message = panic_of(|| run.fused(Regression::init(), folder().path()));
    assert_says(&message, "greater than zero");
}
