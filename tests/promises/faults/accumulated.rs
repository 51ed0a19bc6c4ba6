//! A failed pass leaves all accumulated gradients unchanged, or drops all of them and reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn panic_in_closure_leaves_accumulated_gradients(device: &Device) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let train = |fails: bool| {
        let mut fused = adamw(copied(&initial));
        for x in &xs[..2] {
            fused.accumulate(|model| loss(model, x)).unwrap();
            if fails {
                panic_of(|| fused.accumulate(|model| panics(model, x)).unwrap());
            }
        }
        fused.step(RATE, |model| loss(model, &xs[2])).unwrap();
        assert_eq!(fused.last_step().updated, 4);
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

/// The sum in f32 is finite, and infinite in f16, in which a step applies it.
#[test]
fn sum_beyond_range_of_f16_stops_one_step() {
    let device = flex();
    let weight = Tensor::<1>::zeros([1], &device).cast(FloatDType::F16);
    let clipping = GlobalNormClippingConfig::Exact(1.0);
    let config = FusedConfig::new()
        .with_clipping(Some(clipping))
        .with_full_precision_accumulation(true);
    let weight = Param::from_tensor(weight.detach());
    let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
        .unwrap()
        .with_config(config)
        .unwrap();
    let loss =
        |weight: &Param<Tensor<1>>, slope: f64| (weight.val().cast(FloatDType::F32) * slope).sum();
    for _ in 0..2 {
        fused.accumulate(|weight| loss(weight, 40_000.0)).unwrap();
    }
    let error = fused.step_repeatable(0.1, |weight| loss(weight, 1.0));
    assert_matches!(error, Err(FusedError::NormNotFinite { .. }));
    fused
        .step_repeatable(0.1, |weight| loss(weight, 1.0))
        .unwrap();
}

/// Runs a micro-batch whose block panics in its second run, after its output has its gradient.
fn fail_in_second_run(
    fused: &mut FusedOptimizer<Mlp>,
    x: &Tensor<2>,
) -> Result<Tensor<1>, FusedError> {
    let runs = Arc::new(AtomicBool::new(false));
    fused.accumulate(|model| {
        let once = |input: &Linear, (x, Constant(runs)): (_, Constant<Arc<AtomicBool>>)| {
            assert!(!runs.swap(true, Ordering::Relaxed), "once is enough");
            input.forward(x).tanh()
        };
        let x = gradient_checkpointing(&model.input, (x.clone(), Constant(runs)), once);
        model.output.forward(x).powi_scalar(2).mean()
    })
}

/// Sums have one buffer. If a failed micro-batch has overwritten it, the sums are lost, and the error says so.
fn panic_in_second_run_after_overwritten_sum_ends_group(device: &Device) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let mut fused = adamw(copied(&initial));
    fused.accumulate(|model| loss(model, &xs[0])).unwrap();
    let error = fail_in_second_run(&mut fused, &xs[1]).unwrap_err();
    assert_matches!(error, FusedError::AccumulatedLost { path, .. } if path == "output.bias");
    assert_says(&error, "once is enough");
    // The error is reported once, and the group is dropped.
    assert_nothing_accumulated(&mut fused);
    let mut plain = adamw(copied(&initial));
    for training in [&mut plain, &mut fused] {
        step_group(training, RATE, &xs, loss);
    }
    assert_equal_weights(&plain.model(), &fused.model());
}

/// There was no sum to overwrite. The panic is passed on, and the sums of other parameters remain.
fn panic_in_second_run_before_overwritten_sum_leaves_sums(device: &Device) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let train = |fails: bool| {
        let mut fused = adamw(copied(&initial));
        // Only the first layer has gradients, and only the second receives one in the failed micro-batch.
        fused
            .accumulate(|model| model.input.forward(xs[0].clone()).mean())
            .unwrap();
        if fails {
            let message = panic_of(|| drop(fail_in_second_run(&mut fused, &xs[1])));
            assert_says(&message, "once is enough");
        }
        fused.step(RATE, |model| loss(model, &xs[2])).unwrap();
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

/// Parameters later in the model than the stopping one are updated. All accumulated gradients remain.
#[test]
fn hook_that_stops_leaves_accumulated_gradients() {
    let initial = Mlp::init(&flex());
    let xs = xs(&flex(), 2);
    // Once, at the parameter that is updated last.
    let stops = AtomicBool::new(true);
    let stop = hook(move |_| match stops.swap(false, Ordering::Relaxed) {
        true => Answer::Stop("once"),
        false => Answer::Use,
    });
    let last = ParamGroup::from_predicate("input.weight");
    let mut fused = sgd(copied(&initial)).with_hook(last, stop);
    let mut plain = sgd(copied(&initial));
    for training in [&mut fused, &mut plain] {
        training.accumulate(|model| loss(model, &xs[0])).unwrap();
    }
    // With a learning rate of zero the weights are unchanged.
    let stopped = fused.step(0.0, |model| loss(model, &xs[1])).unwrap_err();
    assert_matches!(stopped, FusedError::StoppedByHook { .. });
    assert_says(&stopped, "`input.weight`: once");
    assert_eq!(fused.last_step().updated, 0);
    for training in [&mut fused, &mut plain] {
        training.step_accumulated(RATE).unwrap();
    }
    assert_equal_weights(&plain.model(), &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);
}

fn nan_micro_batch_does_not_end_training(device: &Device) {
    let xs = xs(device, 3);
    let mut fused = adamw(Mlp::init(device))
        .with_config(FusedConfig::exact(1.0))
        .unwrap();
    let nan = xs[0].clone() * f32::NAN;
    fused.accumulate(|model| loss(model, &nan)).unwrap();
    let before = weights(&fused.model());
    let stopped = fused.step_repeatable(RATE, |model| loss(model, &xs[1]));
    assert_matches!(stopped, Err(FusedError::NormNotFinite { .. }));
    assert_eq!(weights(&fused.model()), before);
    // Sums that no step can apply are dropped.
    assert_nothing_accumulated(&mut fused);
    for x in &xs {
        fused.step_repeatable(RATE, |model| loss(model, x)).unwrap();
        assert!(fused.last_step().gradient_norm.unwrap().is_finite());
    }
    // A NaN in the last micro-batch leaves the good ones before it.
    fused.accumulate(|model| loss(model, &xs[0])).unwrap();
    let stopped = fused.step_repeatable(RATE, |model| loss(model, &nan));
    assert_matches!(stopped, Err(FusedError::NormNotFinite { .. }));
    fused.step_accumulated(RATE).unwrap();
    fused.accumulate(|model| loss(model, &xs[0])).unwrap();
    fused.drop_accumulated();
    assert_nothing_accumulated(&mut fused);
}

fn nan_in_sum_found_by_hook_stops_one_step(device: &Device) {
    let xs = xs(device, 2);
    let nan = xs[0].clone() * f32::NAN;
    let checked = adamw(Mlp::init(device)).with_hook(ParamGroup::all(), AnomalyCheck);
    // Panics where `AnomalyCheck` stops.
    let asserts = hook(|it| {
        assert!(it.elements().iter().all(|it| it.is_finite()), "no number");
        Answer::Use
    });
    let asserted = adamw(Mlp::init(device)).with_hook(ParamGroup::all(), asserts);
    for (mut fused, panics) in [(checked, false), (asserted, true)] {
        for alone in [false, true] {
            fused.accumulate(|model| loss(model, &xs[0])).unwrap();
            fused.accumulate(|model| loss(model, &nan)).unwrap();
            let mut step = || match alone {
                true => fused.step_accumulated(RATE),
                false => fused.step(RATE, |model| loss(model, &xs[1])).map(drop),
            };
            match panics {
                true => assert_says(&panic_of(step), "no number"),
                false => assert_matches!(step(), Err(FusedError::GradientNotFinite { .. })),
            }
            assert_nothing_accumulated(&mut fused);
            fused.step(RATE, |model| loss(model, &xs[1])).unwrap();
            assert_eq!(fused.last_step().updated, 4);
        }
    }
}

/// Such a gradient is not added to the state. A failed step has applied earlier gradients, and the next step continues.
#[test]
fn nan_on_way_into_state_stops_one_micro_batch() {
    let xs = xs(&flex(), 2);
    let nan = xs[0].clone() * f32::NAN;
    let optimizer = optim::AdamWConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state(Mlp::init(&flex()), optimizer)
        .unwrap()
        .with_hook(ParamGroup::all(), AnomalyCheck);
    for _ in 0..2 {
        fused.accumulate(|model| loss(model, &xs[0])).unwrap();
        let stopped = fused.accumulate(|model| loss(model, &nan));
        assert_matches!(stopped, Err(FusedError::GradientNotFinite { .. }));
        fused.step(RATE, |model| loss(model, &xs[1])).unwrap();
        assert_eq!(fused.last_step().updated, 4);
        assert!(elements(&fused.model()).into_iter().all(f64::is_finite));
    }
}

/// If a step can skip gradients that are not finite, the finite ones remain for it.
#[test]
fn finite_part_of_sum_stays_when_step_fails() {
    let x = &xs(&flex(), 1)[0];
    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    let mut fused = adamw(Mlp::init(&flex()))
        .with_config(FusedConfig::scaling(scaling))
        .unwrap();
    let infinite = x.clone().slice_fill([0..5, 0..1], f32::INFINITY);
    fused.accumulate(|model| model.loss(infinite)).unwrap();
    let failed = fused.step(RATE, |model| loss(model, x).detach());
    assert_matches!(failed, Err(FusedError::LossNotTracked));
    fused.step_accumulated(RATE).unwrap();
    assert!(fused.last_step().updated > 0 && fused.last_step().vetoed > 0);
}

fn record_load_drops_accumulated_gradients(device: &Device) {
    let xs = xs(device, 2);
    let mut fused = adamw(Mlp::init(device));
    fused.step(RATE, |model| loss(model, &xs[0])).unwrap();
    let record = fused.to_record();
    fused.accumulate(|model| loss(model, &xs[1])).unwrap();
    fused.load_record(record).unwrap();
    assert_nothing_accumulated(&mut fused);
}

on_every_backend!(
    panic_in_closure_leaves_accumulated_gradients,
    panic_in_second_run_after_overwritten_sum_ends_group,
    panic_in_second_run_before_overwritten_sum_leaves_sums,
    nan_micro_batch_does_not_end_training,
    nan_in_sum_found_by_hook_stops_one_step,
    record_load_drops_accumulated_gradients,
);
