//! Loss scaling equals a stock loop that scales, checks for overflows and skips. (`resume` tests records of the scale.)

use super::*;

/// Batches, two of them with an infinite element.
fn batches_with_overflows(device: &Device) -> Vec<Tensor<2>> {
    let mut batches = batches(device, 9);
    for index in [1, 5] {
        batches[index] = infinite(device);
    }
    batches
}

/// Trains a stock loop with a scale that doubles after `growth` steps without overflow. Returns the scale of every
/// step.
fn train_reference(
    mut model: Squashed,
    batches: &[Tensor<2>],
    overflow: Overflow,
    growth: Option<usize>,
) -> (Squashed, Vec<f64>) {
    let mut optimizer = AdamWConfig::new().init();
    let (mut loss_scale, mut good_steps) = (1024.0, 0);
    let mut scales = Vec::new();
    for x in batches {
        scales.push(loss_scale);
        let loss = model.loss(x).mul_scalar(loss_scale);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        let mut overflowed = false;
        map_gradients(&model, &mut gradients, |_, gradient| {
            let gradient = gradient.mul_scalar(1.0 / loss_scale);
            let is_finite = gradient.to_data().iter::<f32>().all(f32::is_finite);
            overflowed |= !is_finite;
            is_finite.then_some(gradient)
        });
        if !overflowed || overflow == Overflow::SkipParameter {
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        good_steps += 1;
        if overflowed && growth.is_some() {
            (loss_scale, good_steps) = (loss_scale / 2.0, 0);
        } else if growth == Some(good_steps) {
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

fn scaling_with_overflows_matches_stock(device: &Device) {
    let initial = Squashed::init(device);
    let batches = batches_with_overflows(device);
    let growing = [
        1024.0, 1024.0, 512.0, 512.0, 1024.0, 1024.0, 512.0, 512.0, 1024.0,
    ];
    for (overflow, growth, expected) in [
        (Overflow::SkipStep, Some(2), growing),
        (Overflow::SkipParameter, Some(2), growing),
        (Overflow::SkipStep, None, [1024.0; 9]),
    ] {
        let (stock, scales) = train_reference(initial.copied(), &batches, overflow, growth);
        assert_eq!(scales, expected);
        let scaling = config(overflow).with_growth_interval(growth);
        let mut fused = FusedOptimizer::new(initial.copied(), AdamWConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap();
        for (index, (x, scale)) in batches.iter().zip(scales).enumerate() {
            fused
                .step_repeatable(LEARNING_RATE, |model| model.loss(x))
                .unwrap();
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

fn skipped_step_drops_group_and_changes_nothing(device: &Device) {
    let initial = Network::init(device);
    // Clones of a model share its running statistics.
    let before = initial.copied();
    let config = FusedConfig::exact(1.0).with_loss_scaling(Some(LossScalingConfig::new()));
    let mut fused = FusedOptimizer::new(initial, AdamConfig::new().init())
        .unwrap()
        .with_config(config)
        .unwrap();
    fused
        .accumulate(|model| model.loss(&batches(device, 1)[0]))
        .unwrap();
    let accumulated = fused.model().copied();
    fused
        .step_repeatable(LEARNING_RATE, |model| model.loss(&infinite(device)))
        .unwrap();
    assert!(fused.last_step().overflowed);
    assert_eq!(fused.last_step().updated, 0);
    assert_eq!(fused.last_step().clipping, None);
    assert_equal_weights(&accumulated, &fused.model());
    assert_nothing_accumulated(&mut fused);
    assert_changed(&before, &fused.model(), |path| path.contains("running"));
}

on_every_backend!(
    scaling_with_overflows_matches_stock,
    skipped_step_drops_group_and_changes_nothing,
);

/// The forward pass is in f16 and the parameters are in f32. Intermediate gradients are too small for f16.
#[test]
fn scaling_saves_gradients_that_vanish_in_f16() {
    let device = &flex(); // ndarray has no f16.
    let x = Tensor::<2>::ones([2, 6], device).cast(FloatDType::F16);
    let moved = |config: FusedConfig| {
        let model = LinearConfig::new(6, 3).with_bias(false).init(device);
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap();
        let before = fused.model();
        // The step must be large enough to change the weights.
        fused
            .step_repeatable(1e6, |model: &Linear| {
                let output = x.clone().matmul(model.weight.val().cast(FloatDType::F16));
                let output = output.mul_scalar(1e-4).mul_scalar(1e-4);
                output.cast(FloatDType::F32).sum()
            })
            .unwrap();
        let pairs = elements(&before).into_iter().zip(elements(&fused.model()));
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    assert_eq!(moved(FusedConfig::new()), 0.0);
    // Two rows, each 1e-8 times the learning rate.
    let scaling = LossScalingConfig::new().with_initial_scale(16384.0);
    let scaled = moved(FusedConfig::scaling(scaling));
    assert!((scaled - 0.02).abs() < 0.002, "moved by {scaled}");
}

#[test]
fn scaling_in_state_adapts_with_every_micro_batch() {
    let device = flex();
    let adam = optim::AdamConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state(Squashed::init(&device), adam)
        .unwrap()
        .with_config(FusedConfig::scaling(config(Overflow::SkipParameter)))
        .unwrap();
    let x = batches(&device, 1).remove(0);
    fused
        .accumulate(|model| model.loss(&infinite(&device)))
        .unwrap();
    assert!(fused.last_step().overflowed);
    for scale in [512.0, 512.0, 1024.0] {
        fused.step(LEARNING_RATE, |model| model.loss(&x)).unwrap();
        assert_eq!(fused.last_step().loss_scale, Some(scale));
    }
}

#[test]
fn overflow_at_every_scale_is_an_error() {
    let device = flex();
    let mut fused = FusedOptimizer::new(Squashed::init(&device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::scaling(LossScalingConfig::new()))
        .unwrap();
    let x = infinite(&device);
    let steps = (0..100).map(|_| fused.step_repeatable(0.1, |model| model.loss(&x)));
    let error = steps.filter_map(Result::err).next().unwrap();
    assert_matches!(error, FusedError::NormNotFinite { path, .. } if path.starts_with("input."));
}

/// The gradient of 70,000 is finite in f16 with a scale of 0.5, and not without it.
#[test]
fn overflow_of_unscaled_gradient_in_f16_is_not_applied() {
    let device = &flex();
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        let scaling = LossScalingConfig::new()
            .with_initial_scale(0.5)
            .with_overflow(overflow);
        let model = LinearConfig::new(2, 2).with_bias(false).init(device);
        let model = map_values(model, |_, value| value.cast(FloatDType::F16));
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap();
        let before = fused.model();
        let stepped = fused.step_repeatable(0.1, |model: &Linear| {
            model.weight.val().cast(FloatDType::F32).sum() * 70_000.0
        });
        match overflow {
            Overflow::SkipStep => {
                assert_matches!(stepped, Err(FusedError::GradientNotFinite { path }) if path == "weight");
            }
            Overflow::SkipParameter => assert!(fused.last_step().overflowed),
        }
        assert_equal_weights(&before, &fused.model());
    }
}

#[test]
fn scaling_mistakes_are_errors() {
    let device = flex();
    let fused = || FusedOptimizer::new(Squashed::init(&device), SgdConfig::new().init()).unwrap();
    let scaling = LossScalingConfig::new;
    // Gradients are divided in f32 by the last two.
    let scales = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-40, 1e39];
    let refused = scales.map(|scale| (scaling().with_initial_scale(scale), "from 2^-126 to 2^126"));
    let growth = scaling().with_growth_interval(Some(0));
    for (scaling, words) in refused.into_iter().chain([(growth, "`growth_interval`")]) {
        let error = fused().with_config(FusedConfig::scaling(scaling));
        assert_says(&error.unwrap_err(), words);
    }
    let one_pass = FusedConfig::exact(1.0);
    let one_pass = one_pass.with_loss_scaling(Some(config(Overflow::SkipParameter)));
    assert_says(&fused().with_config(one_pass).unwrap_err(), "SkipStep");

    let mut fused = fused()
        .with_config(FusedConfig::scaling(config(Overflow::SkipStep)))
        .unwrap();
    let error = fused.step(0.1, |model| model.loss(&batches(&device, 1)[0]));
    assert_eq!(error.unwrap_err(), FusedError::RunsTwice);
}

/// A gradient that is never finite is not caused by the scale, which stays in the range of f32.
#[test]
fn parameter_that_is_never_finite_leaves_scale_and_others() {
    let device = &flex();
    let scaling = config(Overflow::SkipParameter);
    let mut fused = FusedOptimizer::new(Squashed::init(device), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::scaling(scaling))
        .unwrap();
    let x = infinite(device);
    for _ in 0..40 {
        fused.step(1e-4, |model| model.loss(&x)).unwrap();
        assert!(fused.last_step().overflowed);
    }
    let scale = fused.last_step().loss_scale.unwrap();
    assert_eq!(scale, 1.0 / 65536.0);
    let before = fused.model().copied();
    fused.step(1e-4, |model| model.loss(&x)).unwrap();
    assert_changed(&before, &fused.model(), |path| path.contains("output"));
}
