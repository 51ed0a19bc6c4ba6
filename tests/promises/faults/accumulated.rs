//! Accumulated gradients are one thing: a pass that fails leaves all of them as they were, or none and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::backends::on_every_backend;

/// Both accumulate two micro-batches and step with a third, but one of them fails before in between.
fn compare_with_failing(device: &Device, fail: impl Fn(&mut FusedOptimizer<Mlp>, &Tensor<2>)) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let start = || {
        let model = copy(&initial, || Mlp::init(device));
        FusedOptimizer::new_ok(model, AdamWConfig::new().init())
    };
    let (mut plain, mut failing) = (start(), start());
    for x in &xs[..2] {
        plain.accumulate_ok(|model| model.loss(x.clone()));
        failing.accumulate_ok(|model| model.loss(x.clone()));
        fail(&mut failing, x);
    }
    // A failed update has moved parameters: they start from the same again.
    let before = plain.model();
    let mut again = start();
    for x in &xs[..2] {
        again.accumulate_ok(|model| model.loss(x.clone()));
    }
    assert_equal_weights(&before, &again.model());
    plain.step_ok(RATE, |model| model.loss(xs[2].clone()));
    failing.step_ok(RATE, |model| model.loss(xs[2].clone()));
    assert_eq!(failing.last_step().updated, 4);
    assert_equal_weights(&plain.model(), &failing.model());
}

fn a_panic_in_the_closure_leaves_accumulated_gradients(device: &Device) {
    compare_with_failing(device, |fused, x| {
        panic_of(|| {
            fused.accumulate_ok(|model| {
                let loss = model.loss(x.clone());
                assert!(x.dims()[0] > 5, "too few");
                loss
            })
        });
    });
}

/// A micro-batch whose block panics in its second run, when the output has its gradient.
fn fail_in_a_second_run(
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

/// Sums have one buffer: what a failed micro-batch has overwritten is lost, and the error says so.
fn a_second_run_that_panics_after_a_sum_was_overwritten_ends_the_group(device: &Device) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let start = || {
        let model = copy(&initial, || Mlp::init(device));
        FusedOptimizer::new_ok(model, AdamWConfig::new().init())
    };
    let mut fused = start();
    fused.accumulate_ok(|model| model.loss(xs[0].clone()));
    let error = fail_in_a_second_run(&mut fused, &xs[1]).unwrap_err();
    let FusedError::AccumulatedLost { path, reason } = &error else {
        panic!("{error}");
    };
    assert_eq!(path, "output.bias");
    assert!(reason.contains("once is enough"), "{error}");
    // It is told once, and nothing is left of the group.
    assert_eq!(
        fused.step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
    let mut plain = start();
    for training in [&mut plain, &mut fused] {
        for x in &xs[..2] {
            training.accumulate_ok(|model| model.loss(x.clone()));
        }
        training.step_ok(RATE, |model| model.loss(xs[2].clone()));
    }
    assert_equal_weights(&plain.model(), &fused.model());
}

/// There was no sum to overwrite: the panic is passed on, and what other parameters have accumulated stays.
fn a_second_run_that_panics_before_a_sum_was_overwritten_leaves_accumulated_gradients(
    device: &Device,
) {
    let initial = Mlp::init(device);
    let xs = xs(device, 3);
    let train = |fails: bool| {
        let model = copy(&initial, || Mlp::init(device));
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        // Only the first layer has gradients, and only the second gets one in the micro-batch that fails.
        fused.accumulate_ok(|model| model.input.forward(xs[0].clone()).mean());
        if fails {
            let message = panic_of(|| drop(fail_in_a_second_run(&mut fused, &xs[1])));
            assert_says(&message, "once is enough");
        }
        fused.step_ok(RATE, |model| model.loss(xs[2].clone()));
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

/// The parameters behind the one it stops at have moved; what had been accumulated is there for all.
#[test]
fn a_hook_that_stops_leaves_accumulated_gradients() {
    let device = &flex();
    let initial = Mlp::init(device);
    let xs = xs(device, 2);
    // Once, at the parameter that is updated last.
    let stops = AtomicBool::new(true);
    let stop = hook(move |_| match stops.swap(false, Ordering::Relaxed) {
        true => Answer::Stop("once"),
        false => Answer::Use,
    });
    let mut fused = FusedOptimizer::new_ok(
        copy(&initial, || Mlp::init(device)),
        SgdConfig::new().init(),
    )
    .with_hook(ParamGroup::from_predicate("input.weight"), stop);
    fused.accumulate_ok(|model| model.loss(xs[0].clone()));
    let stopped = fused.step(RATE, |model| model.loss(xs[1].clone()));
    assert!(matches!(stopped, Err(FusedError::StoppedByHook { .. })));
    assert_eq!(fused.last_step().updated, 0);

    // From the weights of before, the same gradients are used again, once.
    let weights_of_before = initial.clone();
    let mut plain = FusedOptimizer::new_ok(
        copy(&initial, || Mlp::init(device)),
        SgdConfig::new().init(),
    );
    plain.accumulate_ok(|model| model.loss(xs[0].clone()));
    plain.step_ok(RATE, |model| model.loss(xs[1].clone()));
    let moved = |before: &Mlp, after: &Mlp| -> Vec<f64> {
        let pairs = weights(before).into_iter().zip(weights(after));
        pairs
            .flat_map(|((_, a), (_, b))| {
                let (a, b): (Vec<f64>, Vec<f64>) = (a.iter().collect(), b.iter().collect());
                a.into_iter().zip(b).map(|(a, b)| b - a).collect::<Vec<_>>()
            })
            .collect()
    };
    let middle = fused.model();
    fused.step_accumulated_ok(RATE);
    let only_accumulated = moved(&middle, &fused.model());
    let mut alone = FusedOptimizer::new_ok(weights_of_before, SgdConfig::new().init());
    alone.accumulate_ok(|model| model.loss(xs[0].clone()));
    let before = alone.model();
    alone.step_accumulated_ok(RATE);
    for (a, b) in moved(&before, &alone.model()).iter().zip(&only_accumulated) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
}

fn a_nan_micro_batch_does_not_end_training(device: &Device) {
    let xs = xs(device, 3);
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init())
        .with_config_ok(FusedConfig::exact(1.0));
    let nan = xs[0].clone() * f32::NAN;
    fused.accumulate_ok(|model| model.loss(nan.clone()));
    let before = weights(&fused.model());
    let stopped = fused.step_repeatable(RATE, |model| model.loss(xs[1].clone()));
    assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
    assert_eq!(weights(&fused.model()), before);
    // What no step can use is gone.
    assert_eq!(
        fused.step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
    for x in &xs {
        fused.step_repeatable_ok(RATE, |model| model.loss(x.clone()));
        assert!(fused.last_step().gradient_norm.unwrap().is_finite());
    }
    // A NaN in the last micro-batch leaves the good ones before it.
    fused.accumulate_ok(|model| model.loss(xs[0].clone()));
    let stopped = fused.step_repeatable(RATE, |model| model.loss(nan.clone()));
    assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
    fused.step_accumulated_ok(RATE);
    fused.accumulate_ok(|model| model.loss(xs[0].clone()));
    fused.drop_accumulated();
    assert_eq!(
        fused.step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
}

fn a_nan_that_a_hook_finds_in_the_sum_stops_one_step(device: &Device) {
    let xs = xs(device, 2);
    let nan = xs[0].clone() * f32::NAN;
    let start = || FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init());
    let checked = || start().with_hook(ParamGroup::all(), AnomalyCheck);
    // Panics where `AnomalyCheck` stops.
    let asserts = || {
        hook(|it| {
            assert!(it.elements().iter().all(|it| it.is_finite()), "no number");
            Answer::Use
        })
    };
    let asserted = || start().with_hook(ParamGroup::all(), asserts());
    for (mut fused, panics) in [(checked(), false), (asserted(), true)] {
        for alone in [false, true] {
            fused.accumulate_ok(|model| model.loss(xs[0].clone()));
            fused.accumulate_ok(|model| model.loss(nan.clone()));
            let mut step = || match alone {
                true => fused.step_accumulated(RATE),
                false => fused
                    .step(RATE, |model| model.loss(xs[1].clone()))
                    .map(drop),
            };
            match panics {
                true => assert!(panic_of(step).contains("no number")),
                false => assert!(matches!(step(), Err(FusedError::GradientNotFinite { .. }))),
            }
            assert_eq!(
                fused.step_accumulated(RATE),
                Err(FusedError::NothingAccumulated)
            );
            fused.step_ok(RATE, |model| model.loss(xs[1].clone()));
            assert_eq!(fused.last_step().updated, 4);
        }
    }
}

/// Such a gradient goes into no state: a step that fails has taken what came before it, and the next goes on.
#[test]
fn a_nan_that_a_hook_finds_on_its_way_into_the_state_stops_one_micro_batch() {
    let device = &flex();
    let xs = xs(device, 2);
    let nan = xs[0].clone() * f32::NAN;
    let optimizer = backburn::optim::AdamWConfig::new().build();
    let mut fused = FusedOptimizer::accumulating_in_state_ok(Mlp::init(device), optimizer)
        .with_hook(ParamGroup::all(), AnomalyCheck);
    for _ in 0..2 {
        fused.accumulate_ok(|model| model.loss(xs[0].clone()));
        let stopped = fused.accumulate(|model| model.loss(nan.clone()));
        assert!(matches!(stopped, Err(FusedError::GradientNotFinite { .. })));
        fused.step_ok(RATE, |model| model.loss(xs[1].clone()));
        assert_eq!(fused.last_step().updated, 4);
        let finite = |data: &burn::tensor::TensorData| data.iter::<f32>().all(f32::is_finite);
        assert!(weights(&fused.model()).iter().all(|(_, data)| finite(data)));
    }
}

/// Where a step can do without the gradients that are not finite, those that are stay for it.
#[test]
fn what_a_step_can_use_of_a_sum_stays_when_another_fails() {
    let device = &flex();
    let xs = xs(device, 1);
    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipParameter);
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init())
        .with_config_ok(FusedConfig::scaling(scaling));
    let infinite = xs[0].clone().slice_fill([0..5, 0..1], f32::INFINITY);
    fused.accumulate_ok(|model| model.loss(infinite));
    let failed = fused.step(RATE, |model| model.loss(xs[0].clone()).detach());
    assert_eq!(failed.map(drop), Err(FusedError::LossNotTracked));
    fused.step_accumulated_ok(RATE);
    assert!(fused.last_step().updated > 0 && fused.last_step().vetoed > 0);
}

fn a_record_drops_what_was_accumulated_under_another_scale(device: &Device) {
    let xs = xs(device, 2);
    let mut fused = FusedOptimizer::new_ok(Mlp::init(device), AdamWConfig::new().init());
    fused.step_ok(RATE, |model| model.loss(xs[0].clone()));
    let record = fused.to_record();
    fused.accumulate_ok(|model| model.loss(xs[1].clone()));
    fused.load_record_ok(record);
    assert_eq!(
        fused.step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
}

on_every_backend!(
    a_panic_in_the_closure_leaves_accumulated_gradients,
    a_second_run_that_panics_after_a_sum_was_overwritten_ends_the_group,
    a_second_run_that_panics_before_a_sum_was_overwritten_leaves_accumulated_gradients,
    a_nan_micro_batch_does_not_end_training,
    a_nan_that_a_hook_finds_in_the_sum_stops_one_step,
    a_record_drops_what_was_accumulated_under_another_scale,
);
