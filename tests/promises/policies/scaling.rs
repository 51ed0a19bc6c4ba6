//! Loss scaling equals a stock loop that scales, looks for overflows and skips.

use burn::optim::*;

use super::*;
use crate::backends::on_every_backend;

/// Batches with an infinite element in some.
fn with_overflows(device: &Device, overflows: &[usize]) -> Vec<Tensor<2>> {
    let mut batches = batches(device, 9);
    for index in overflows {
        batches[*index] = infinite(device);
    }
    batches
}

/// Drops gradients that are not finite.
struct Finite<'a> {
    gradients: &'a mut GradientsParams,
    overflowed: bool,
}

impl ModuleVisitor for Finite<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.remove::<D>(param.id).unwrap();
        match gradient.to_data().iter::<f32>().all(f32::is_finite) {
            true => self.gradients.register(param.id, gradient),
            false => self.overflowed = true,
        }
    }
}

/// A stock loop with a dynamic scale that doubles after two good steps. Returns the scale of every
/// step.
fn train_reference(
    mut model: Squashed,
    batches: &[Tensor<2>],
    overflow: Overflow,
) -> (Squashed, Vec<f64>) {
    let mut optimizer = AdamWConfig::new().init();
    let (mut loss_scale, mut good_steps) = (1024.0, 0);
    let mut scales = Vec::new();
    for x in batches {
        scales.push(loss_scale);
        let loss = model.loss(x.clone()).mul_scalar(loss_scale);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        scale(&model, &mut gradients, 1.0 / loss_scale);
        let mut finite = Finite {
            gradients: &mut gradients,
            overflowed: false,
        };
        model.visit(&mut finite);
        let overflowed = finite.overflowed;
        if !overflowed || overflow == Overflow::SkipParameter {
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        good_steps += 1;
        if overflowed {
            (loss_scale, good_steps) = (loss_scale / 2.0, 0);
        } else if good_steps == 2 {
            (loss_scale, good_steps) = (loss_scale * 2.0, 0);
        }
    }
    (model, scales)
}

fn config(overflow: Overflow) -> LossScalingConfig {
    LossScalingConfig::new()
        .with_initial_scale(1024.0)
        .with_growth_interval(Some(2))
        .with_overflow(overflow)
}

fn scaling_equals_a_stock_loop_with_planted_overflows(device: &Device) {
    let initial = Squashed::init(device);
    let copy = || copy(&initial, || Squashed::init(device));
    let batches = with_overflows(device, &[1, 5]);
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        let (stock, scales) = train_reference(copy(), &batches, overflow);
        let growing = [
            1024.0, 1024.0, 512.0, 512.0, 1024.0, 1024.0, 512.0, 512.0, 1024.0,
        ];
        assert_eq!(scales, growing);
        let mut fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init())
            .with_config_ok(FusedConfig::scaling(config(overflow)));
        for (index, (x, scale)) in batches.iter().zip(scales).enumerate() {
            fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
            let report = fused.last_step();
            assert_eq!(report.loss_scale, Some(scale), "step {index}");
            assert_eq!(report.overflowed, [1, 5].contains(&index), "step {index}");
            if report.overflowed && overflow == Overflow::SkipStep {
                assert_eq!(report.updated, 0);
            }
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

fn a_skipped_step_changes_nothing(device: &Device) {
    let initial = Network::init(device);
    // Clones of a model share its running statistics.
    let before = copy(&initial, || Network::init(device));
    let mut fused = FusedOptimizer::new_ok(initial, AdamConfig::new().init()).with_config_ok(
        FusedConfig::scaling(LossScalingConfig::new())
            .with_clipping(Some(GlobalNormClippingConfig::Exact(1.0))),
    );
    let (x, infinite) = (batches(device, 1).remove(0), infinite(device));
    fused.accumulate_ok(|model| model.loss(x.clone()));
    let accumulated = copy(&fused.model(), || Network::init(device));
    fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(infinite.clone()));
    assert!(fused.last_step().overflowed);
    assert_eq!(fused.last_step().updated, 0);
    assert_equal_weights(&accumulated, &fused.model());
    let error = fused.step_accumulated(LEARNING_RATE);
    assert_eq!(
        error,
        Err(FusedError::NothingAccumulated),
        "the group is gone"
    );
    assert_changed(&before, &fused.model(), |path| path.contains("running"));
}

/// The forward pass in f16, the parameters in f32: the gradients are too small for f16 on the way.
#[test]
fn scaling_saves_gradients_that_vanish_in_f16() {
    let device = &Device::flex().autodiff(); // ndarray has no f16.
    let loss = |model: &Linear, x: &Tensor<2>| {
        let weight = model.weight.val().cast(FloatDType::F16);
        let output = x.clone().cast(FloatDType::F16).matmul(weight);
        (output.mul_scalar(1e-4).mul_scalar(1e-4))
            .cast(FloatDType::F32)
            .sum()
    };
    let model = LinearConfig::new(6, 3).with_bias(false).init(device);
    let x = Tensor::ones([2, 6], device);
    let moved = |scaling: Option<LossScalingConfig>| {
        let model = copy(&model, || {
            LinearConfig::new(6, 3).with_bias(false).init(device)
        });
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init());
        if let Some(scaling) = scaling {
            fused = fused.with_config_ok(FusedConfig::scaling(scaling));
        }
        let before = weights(&fused.model());
        // The step must show in the weights beside their size.
        fused.step_repeatable_ok(1e6, |model| loss(model, &x));
        let after = weights(&fused.model());
        let pairs = before[0].1.iter::<f64>().zip(after[0].1.iter::<f64>());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    assert_eq!(moved(None), 0.0);
    // Two rows, each 1e-8 times the learning rate.
    let scaled = moved(Some(LossScalingConfig::new().with_initial_scale(16384.0)));
    assert!((scaled - 0.02).abs() < 0.002, "moved by {scaled}");
}

fn a_record_brings_the_scale_back(device: &Device) {
    let initial = Squashed::init(device);
    let batches = with_overflows(device, &[0]);
    let mut fused = FusedOptimizer::new_ok(initial, AdamConfig::new().init())
        .with_config_ok(FusedConfig::scaling(config(Overflow::SkipStep)));
    for x in &batches[..2] {
        fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    }
    // 512 after the overflow, and one good step.
    let bytes = fused.to_record().into_bytes().unwrap();
    let record = || OptimizerRecord::from_bytes(bytes.clone()).unwrap();
    let model = || copy(&fused.model(), || Squashed::init(device));

    let mut again = FusedOptimizer::new_ok(model(), AdamConfig::new().init())
        .with_config_ok(FusedConfig::scaling(config(Overflow::SkipStep)));
    again.load_record_ok(record());
    let scales = batches[2..5].iter().map(|x| {
        again.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
        again.last_step().loss_scale.unwrap()
    });
    assert_eq!(scales.collect::<Vec<_>>(), [512.0, 1024.0, 1024.0]);

    // Stock Burn, and training without a scale, pass it over.
    let mut optimizer = AdamConfig::new().init().load_record(record());
    let loss = |model: &Squashed, step: usize| model.loss(batches[2 + step].clone());
    let stock = train_stock(model(), &mut optimizer, 3, LEARNING_RATE, loss);
    let mut plain = FusedOptimizer::new_ok(model(), AdamConfig::new().init());
    plain.load_record_ok(record());
    train_fused(&mut plain, 3, LEARNING_RATE, loss);
    assert_equal_weights(&stock, &plain.model());
    assert_equal_weights(&stock, &again.model());
}

on_every_backend!(
    scaling_equals_a_stock_loop_with_planted_overflows,
    a_skipped_step_changes_nothing,
    a_record_brings_the_scale_back,
);

#[test]
fn every_micro_batch_in_the_optimizer_state_adapts_the_scale() {
    let device = Device::flex().autodiff();
    let adam = backburn::optim::AdamConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(Squashed::init(&device), adam)
        .with_config_ok(FusedConfig::scaling(config(Overflow::SkipParameter)));
    let x = batches(&device, 1).remove(0);
    fused.accumulate_ok(|model| model.loss(infinite(&device)));
    assert!(fused.last_step().overflowed);
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().loss_scale, Some(512.0));
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    fused.step_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert_eq!(fused.last_step().loss_scale, Some(1024.0));
}

#[test]
fn a_static_scale_stays() {
    let device = Device::flex().autodiff();
    let scaling = config(Overflow::SkipStep).with_growth_interval(None);
    let mut fused = FusedOptimizer::new_ok(Squashed::init(&device), SgdConfig::new().init())
        .with_config_ok(FusedConfig::scaling(scaling));
    for (index, x) in with_overflows(&device, &[4]).iter().enumerate() {
        fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
        assert_eq!(fused.last_step().loss_scale, Some(1024.0));
        assert_eq!(fused.last_step().overflowed, index == 4);
    }
}

#[test]
fn an_overflow_that_no_scale_helps_against_ends_in_an_error() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new_ok(Squashed::init(&device), SgdConfig::new().init())
        .with_config_ok(FusedConfig::scaling(LossScalingConfig::new()));
    let x = infinite(&device);
    let steps = (0..100).map(|_| fused.step_repeatable(0.1, |model| model.loss(x.clone())));
    let error = steps.filter_map(Result::err).next().unwrap();
    let FusedError::NormNotFinite { path, .. } = error else {
        panic!("another error")
    };
    assert!(path.starts_with("input."), "`{path}`");
}

#[test]
fn mistakes_in_loss_scaling_get_a_clear_error() {
    let device = Device::flex().autodiff();
    let fused = || FusedOptimizer::new_ok(Squashed::init(&device), SgdConfig::new().init());
    // Gradients are divided in f32 by the last two.
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-40, 1e39] {
        let scaling = LossScalingConfig::new().with_initial_scale(scale);
        let error = fused()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap_err();
        assert_says(&error, "positive finite");
    }
    let scaling = LossScalingConfig::new().with_growth_interval(Some(0));
    let error = fused()
        .with_config(FusedConfig::scaling(scaling))
        .unwrap_err();
    assert_says(&error, "`growth_interval`");

    let one_pass = FusedConfig::scaling(config(Overflow::SkipParameter));
    let exact = Some(GlobalNormClippingConfig::Exact(1.0));
    let error = fused().with_config(one_pass.with_clipping(exact));
    assert!(error.unwrap_err().to_string().contains("SkipStep"));

    let mut fused = fused().with_config_ok(FusedConfig::scaling(config(Overflow::SkipStep)));
    let x = batches(&device, 1).remove(0);
    let error = fused.step(0.1, |model| model.loss(x.clone()));
    assert_eq!(error.unwrap_err(), FusedError::RunsTwice);
}
