//! A training launched fused clips, scales and hooks as one that does it in stock Burn.

use std::path::Path;

use backburn::train::{FusedLearner, LaunchFused};
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::train::{Learner, LearningResult, RegressionOutput, TrainOutput, TrainStep};

use super::{Points, Regression, Run, files};
use crate::common::*;

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
        let mut clip = Clip {
            gradients: &mut gradients,
            squares: 0.0,
            coefficient: 1.0,
        };
        self.visit(&mut clip);
        clip.coefficient = (MAX_NORM / clip.squares.sqrt()).min(1.0);
        self.visit(&mut clip);
        optimizer.step(learning_rate, self, gradients)
    }
}

impl_inference_step!(Clipped, Points, inner);

struct Clip<'a> {
    gradients: &'a mut GradientsParams,
    squares: f64,
    coefficient: f64,
}

impl ModuleVisitor for Clip<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let squares = gradient.clone().square().sum().into_scalar::<f64>();
            self.squares += squares;
            let gradient = gradient.mul_scalar(self.coefficient);
            self.gradients.register(param.id, gradient);
        }
    }
}

/// The running statistics of normalization layers belong to the forward pass.
#[track_caller]
fn assert_untrained<M: Module>(before: &M, after: &M) {
    for ((path, before), (_, after)) in weights(before).iter().zip(weights(after)) {
        let same = before.as_bytes() == after.as_bytes();
        assert!(same || path.contains("running"), "`{path}` changed");
    }
}

fn run(accumulation: Option<usize>) -> Run {
    Run {
        accumulation,
        ..Run::new(2)
    }
}

#[test]
fn exact_clipping_equals_clipping_in_the_optimize_of_stock() {
    let initial = Clipped::init();
    for accumulation in [None, Some(2)] {
        let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
        let [stock_folder, fused_folder] = folders.each_ref().map(|folder| folder.path());
        let model = || copy(&initial, Clipped::init);

        let stock = run(accumulation);
        let training = stock.training::<Clipped>(stock_folder);
        let stock = training.launch(Learner::new(model(), stock.optimizer, stock.scheduler));
        let fused = run(accumulation);
        let learner = FusedLearner::new(model(), fused.optimizer.clone(), fused.scheduler.clone())
            .with_config_ok(
                FusedConfig::exact(MAX_NORM).with_loss_scaling(Some(LossScalingConfig::new())),
            );
        let fused = fused.training(fused_folder).launch_fused(learner);

        assert!(fused.error.is_none());
        assert_changed(&initial, &fused.model, |_| true);
        // Burn merges running statistics when they are read.
        assert_equal_weights(&stock.model.valid(), &fused.model.valid());
        assert_eq!(files(stock_folder), files(fused_folder));
    }
}

fn launch(
    folder: &Path,
    choose: impl FnOnce(FusedLearner<Clipped>) -> FusedLearner<Clipped>,
) -> (Clipped, LearningResult<Clipped>) {
    let run = run(None);
    let initial = Clipped::init();
    let model = copy(&initial, Clipped::init);
    let learner = choose(FusedLearner::new(
        model,
        run.optimizer.clone(),
        run.scheduler.clone(),
    ));
    let training = run
        .training(folder)
        .metric_train_numeric(learner.gradient_norm())
        .metric_train_numeric(learner.clipping_coefficient())
        .metric_train_numeric(learner.loss_scale());
    (initial, training.launch_fused(learner))
}

#[test]
fn norm_coefficient_and_scale_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    launch(folder.path(), |learner| {
        let scaling = LossScalingConfig::new().with_initial_scale(4096.0);
        learner.with_config_ok(FusedConfig::exact(1e-3).with_loss_scaling(Some(scaling)))
    });
    let logged = |name: &str| -> Vec<f64> {
        let file = folder.path().join("train/epoch-1").join(name);
        let log = std::fs::read_to_string(&file).unwrap();
        let numbers = log.lines().map(|line| {
            let number = line.split(',').next().unwrap();
            number.parse::<f64>().unwrap()
        });
        numbers.collect()
    };
    let scales = logged("Loss_Scale.log");
    assert_eq!(scales.last(), Some(&4096.0));
    let (norm, coefficient) = (
        logged("Gradient_Norm.log"),
        logged("Clipping_Coefficient.log"),
    );
    assert!(norm.iter().any(|norm| *norm > 1e-3), "{norm:?}");
    assert!(
        coefficient.iter().any(|coefficient| *coefficient < 1.0),
        "{coefficient:?}"
    );
}

#[test]
fn a_hook_ends_the_training_with_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let (initial, result) = launch(folder.path(), |learner| {
        let poison = ParamGroup::from_path("inner.output.bias");
        learner
            .with_hook(poison, Poison)
            .with_hook(ParamGroup::all(), AnomalyCheck)
    });
    let error = result.error.expect("the training failed").to_string();
    assert_says(&error, "`inner.output.bias` is not finite");
    assert_untrained(&initial, &result.model);
}

/// Makes a gradient infinite.
struct Poison;

impl backburn::GradientHook for Poison {
    fn call<const D: usize>(
        &self,
        _parameter: backburn::HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> backburn::GradientFlow<D> {
        backburn::GradientFlow::Continue(gradient.full_like(f32::INFINITY))
    }
}

#[test]
fn a_loss_that_is_not_scaled_ends_the_training_before_the_first_update() {
    let initial = Regression::init();
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        for accumulation in [None, Some(2)] {
            let folder = tempfile::tempdir().unwrap();
            let run = run(accumulation);
            let model = copy(&initial, Regression::init);
            let result = run.launch(
                model,
                FusedConfig::scaling(LossScalingConfig::new().with_overflow(overflow)),
                folder.path(),
            );
            let error = result.error.expect("the training failed").to_string();
            assert_says(&error, "scale_loss");
            assert_untrained(&initial, &result.model);
        }
    }
}

#[test]
fn a_norm_that_is_not_finite_ends_the_training_before_the_update() {
    let initial = Clipped::init();
    let folder = tempfile::tempdir().unwrap();
    let broken = initial.inner.output.weight.val().full_like(f32::INFINITY);
    let mut model = copy(&initial, Clipped::init);
    model.inner.output.weight = model
        .inner
        .output
        .weight
        .map(|_| broken.detach().require_grad());
    let before = weights(&model);
    let run = run(None);
    let result = run.launch(model, FusedConfig::exact(1.0), folder.path());
    let error = result.error.expect("the training failed").to_string();
    assert_says(&error, "global norm");
    for ((path, before), (_, after)) in before.iter().zip(weights(&result.model)) {
        assert_eq!(before.as_bytes(), after.as_bytes(), "`{path}`");
    }
}

#[test]
fn a_checkpoint_brings_the_scale_back() {
    let folder = tempfile::tempdir().unwrap();
    // Five steps an epoch: the scale doubles twice in the first, and once in the second.
    let scaling = LossScalingConfig::new()
        .with_initial_scale(8.0)
        .with_growth_interval(Some(2));
    let initial = Clipped::init();
    for resume in [None, Some(1)] {
        let run = Run {
            resume,
            ..Run::new(1 + resume.unwrap_or(0))
        };
        let model = copy(&initial, Clipped::init);
        let result = run.launch(model, FusedConfig::scaling(scaling), folder.path());
        assert!(result.error.is_none());

        let (epoch, expected) = match resume {
            None => (1, [32.0, 64.0]), // One good step is behind it.
            Some(_) => (2, [256.0, 256.0]),
        };
        let file = folder.path().join(format!("checkpoint/optim-{epoch}.bpk"));
        let record =
            OptimizerRecord::from_bytes(Bytes::from_bytes_vec(std::fs::read(file).unwrap()))
                .unwrap();
        let mut fused = FusedOptimizer::new_ok(result.model.train(), AdamWConfig::new().init())
            .with_config_ok(FusedConfig::scaling(scaling));
        fused.load_record_ok(record);
        let device = &Device::flex().autodiff();
        let scales = expected.map(|_| {
            fused.step_repeatable_ok(0.1, |model| {
                let points = Points::ones(device);
                model.inner.output(points).loss
            });
            fused.last_step().loss_scale.unwrap()
        });
        assert_eq!(scales, expected, "after epoch {epoch}");
    }
}

#[test]
fn record_loaded_under_another_growth_interval_keeps_its_scale() {
    let scaled = |interval| {
        let scaling = LossScalingConfig::new()
            .with_initial_scale(8.0)
            .with_growth_interval(Some(interval));
        FusedConfig::scaling(scaling)
    };
    let folder = tempfile::tempdir().unwrap();
    launch(folder.path(), |learner| {
        let model = copy(&learner.model(), Clipped::init);
        let mut fused =
            FusedOptimizer::new_ok(model, AdamWConfig::new().init()).with_config_ok(scaled(2));
        for _ in 0..4 {
            let points = || Points::ones(&Device::flex().autodiff());
            fused.step_repeatable_ok(0.1, |model| model.inner.output(points()).loss);
        }
        let mut learner = learner.with_config_ok(scaled(1000));
        learner.load_optim(fused.to_record());
        learner
    });
    let file = folder.path().join("train/epoch-1/Loss_Scale.log");
    let scales = std::fs::read_to_string(file).unwrap();
    let mut scales = scales.lines().map(|line| line.split(',').next().unwrap());
    assert!(scales.all(|scale| scale.parse() == Ok(32.0)));
}

#[test]
fn lagged_clipping_resumes_exactly_from_a_checkpoint() {
    let initial = Clipped::init();
    let train = |epochs, resume, folder: &Path| {
        let run = Run {
            resume,
            // Plain SGD shows every coefficient in the weights.
            optimizer: SgdConfig::new().init(),
            ..Run::new(epochs)
        };
        let model = copy(&initial, Clipped::init);
        let result = run.launch(model, FusedConfig::lagged(1e-3), folder);
        assert!(result.error.is_none());
        result.model
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let whole = train(3, None, folders[0].path());
    train(2, None, folders[1].path());
    let resumed = train(3, Some(2), folders[1].path());
    assert_equal_weights(&whole, &resumed);
}

#[test]
fn accumulation_in_state_equals_a_loop() {
    let sgd = || {
        let momentum = burn::optim::momentum::MomentumConfig::new();
        backburn::optim::SgdConfig::new().with_momentum(Some(momentum))
    };
    let initial = Regression::init();
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let run = || Run {
        scheduler: ConstantLr::new(0.01).into(),
        optimizer: sgd().init(),
        ..run(Some(2))
    };
    // Five batches an epoch: the last group of each is short.
    let model = copy(&initial, Regression::init);
    let stock = run().stock(model, folders[0].path());
    let model = copy(&initial, Regression::init);
    let learner =
        FusedLearner::accumulating_in_state(model, sgd().build(), ConstantLr::new(0.01)).unwrap();
    let fused = run().training(folders[1].path()).launch_fused(learner);
    assert_near_weights(&stock.model, &fused.model, 1e-5, 1e-5);
    assert_changed(&initial, &fused.model, |_| true);
}

#[test]
#[should_panic(expected = "must be positive")]
fn a_largest_norm_of_zero_is_refused() {
    let optimizer = SgdConfig::new().init();
    let learner = FusedLearner::new(Regression::init(), optimizer, ConstantLr::new(0.1));
    let _ = learner.with_config_ok(FusedConfig::exact(0.0));
}

#[test]
#[should_panic(expected = "greater than zero")]
fn accumulation_of_zero_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(Some(0));
    let optimizer = SgdConfig::new().init();
    let learner = FusedLearner::new(Regression::init(), optimizer, ConstantLr::new(0.1));
    run.training(folder.path()).launch_fused(learner);
}
