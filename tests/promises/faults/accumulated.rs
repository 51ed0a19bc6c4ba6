//! Accumulated gradients are one thing: a pass that fails leaves all of them as they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backburn::{
    FusedError, FusedOptimizer, GlobalNormClippingConfig, GradientFlow, GradientHook,
    HookedParameter, gradient_checkpointing,
};
use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;

use super::*;
use crate::backends::on_every_backend;

/// Stops once, at the parameter it is called for.
#[derive(Clone)]
struct StopOnce(Arc<AtomicBool>);

impl GradientHook for StopOnce {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        match self.0.swap(false, Ordering::Relaxed) {
            false => GradientFlow::Continue(gradient),
            true => GradientFlow::Stop(FusedError::StoppedByHook {
                path: parameter.path.to_string(),
                reason: "once".to_string(),
            }),
        }
    }
}

/// Both accumulate two micro-batches and step with a third, but one of them fails before in between.
fn compare_with_failing(
    device: &Device,
    fail: impl Fn(&mut FusedOptimizer<Net>, &Tensor<2>),
    hook: Option<StopOnce>,
) {
    let initial = Net::init(device);
    let xs = xs(device, 3);
    let start = || {
        let model = copy(&initial, || Net::init(device));
        FusedOptimizer::new(model, AdamWConfig::new().init())
    };
    let mut plain = start();
    let mut failing = start();
    if let Some(hook) = hook {
        // At the parameter that is updated last.
        failing = failing.with_hook(ParamGroup::from_predicate("input.weight"), hook);
    }
    for x in &xs[..2] {
        plain.accumulate(|model| model.loss(x.clone()));
        failing.accumulate(|model| model.loss(x.clone()));
        fail(&mut failing, x);
    }
    // A failed update has moved parameters: they start from the same again.
    let before = plain.model();
    let mut again = start();
    for x in &xs[..2] {
        again.accumulate(|model| model.loss(x.clone()));
    }
    assert_equal_weights(&before, &again.model());
    plain.step(RATE, |model| model.loss(xs[2].clone()));
    failing.step(RATE, |model| model.loss(xs[2].clone()));
    assert_eq!(failing.last_step().updated, 4);
    assert_equal_weights(&plain.model(), &failing.model());
}

fn a_panic_in_the_closure_leaves_accumulated_gradients(device: &Device) {
    compare_with_failing(
        device,
        |fused, x| {
            panic_of(|| {
                fused.accumulate(|model| {
                    let loss = model.loss(x.clone());
                    assert!(x.dims()[0] > 5, "too few");
                    loss
                })
            });
        },
        None,
    );
}

fn a_panic_in_a_second_run_leaves_accumulated_gradients(device: &Device) {
    compare_with_failing(
        device,
        |fused, x| {
            let runs = Arc::new(AtomicBool::new(false));
            let message = panic_of(|| {
                fused.accumulate(|model| {
                    let runs = runs.clone();
                    let once = move |input: &Linear, x| {
                        assert!(!runs.swap(true, Ordering::Relaxed), "once is enough");
                        input.forward(x).tanh()
                    };
                    let x = gradient_checkpointing(&model.input, x.clone(), once);
                    model.output.forward(x).powi_scalar(2).mean()
                })
            });
            // The output had its gradient by then.
            assert!(message.contains("once is enough"), "{message}");
        },
        None,
    );
}

/// The parameters behind the one it stops at have moved; what had been accumulated is there for all.
#[test]
fn a_hook_that_stops_leaves_accumulated_gradients() {
    let device = &flex();
    let initial = Net::init(device);
    let xs = xs(device, 2);
    let stop = StopOnce(Arc::new(AtomicBool::new(true)));
    let mut fused = FusedOptimizer::new(
        copy(&initial, || Net::init(device)),
        SgdConfig::new().init(),
    )
    .with_hook(ParamGroup::from_predicate("input.weight"), stop);
    fused.accumulate(|model| model.loss(xs[0].clone()));
    let stopped = fused.try_step(RATE, |model| model.loss(xs[1].clone()));
    assert!(matches!(stopped, Err(FusedError::StoppedByHook { .. })));
    assert_eq!(fused.last_step().updated, 0);

    // From the weights of before, the same gradients are used again, once.
    let weights_of_before = initial.clone();
    let mut plain = FusedOptimizer::new(
        copy(&initial, || Net::init(device)),
        SgdConfig::new().init(),
    );
    plain.accumulate(|model| model.loss(xs[0].clone()));
    plain.step(RATE, |model| model.loss(xs[1].clone()));
    let moved = |before: &Net, after: &Net| -> Vec<f64> {
        let pairs = weights(before).into_iter().zip(weights(after));
        pairs
            .flat_map(|((_, a), (_, b))| {
                let (a, b): (Vec<f64>, Vec<f64>) = (a.iter().collect(), b.iter().collect());
                a.into_iter().zip(b).map(|(a, b)| b - a).collect::<Vec<_>>()
            })
            .collect()
    };
    let middle = fused.model();
    fused.step_accumulated(RATE);
    let only_accumulated = moved(&middle, &fused.model());
    let mut alone = FusedOptimizer::new(weights_of_before, SgdConfig::new().init());
    alone.accumulate(|model| model.loss(xs[0].clone()));
    let before = alone.model();
    alone.step_accumulated(RATE);
    for (a, b) in moved(&before, &alone.model()).iter().zip(&only_accumulated) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
}

fn a_nan_micro_batch_does_not_end_training(device: &Device) {
    let xs = xs(device, 3);
    let mut fused = FusedOptimizer::new(Net::init(device), AdamWConfig::new().init())
        .with_clipping(GlobalNormClippingConfig::Exact(1.0));
    let nan = xs[0].clone() * f32::NAN;
    fused.accumulate(|model| model.loss(nan.clone()));
    let before = weights(&fused.model());
    let stopped = fused.try_step_repeatable(RATE, |model| model.loss(xs[1].clone()));
    assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
    assert_eq!(weights(&fused.model()), before);
    // What no step can use is gone.
    assert_eq!(
        fused.try_step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
    for x in &xs {
        fused.step_repeatable(RATE, |model| model.loss(x.clone()));
        assert!(fused.last_step().gradient_norm.unwrap().is_finite());
    }
    // A NaN in the last micro-batch leaves the good ones before it.
    fused.accumulate(|model| model.loss(xs[0].clone()));
    let stopped = fused.try_step_repeatable(RATE, |model| model.loss(nan.clone()));
    assert!(matches!(stopped, Err(FusedError::NormNotFinite { .. })));
    fused.step_accumulated(RATE);
    fused.accumulate(|model| model.loss(xs[0].clone()));
    fused.drop_accumulated();
    assert_eq!(
        fused.try_step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
}

fn a_record_drops_what_was_accumulated_under_another_scale(device: &Device) {
    let xs = xs(device, 2);
    let mut fused = FusedOptimizer::new(Net::init(device), AdamWConfig::new().init());
    fused.step(RATE, |model| model.loss(xs[0].clone()));
    let record = fused.to_record();
    fused.accumulate(|model| model.loss(xs[1].clone()));
    fused.load_record(record);
    assert_eq!(
        fused.try_step_accumulated(RATE),
        Err(FusedError::NothingAccumulated)
    );
}

on_every_backend!(
    a_panic_in_the_closure_leaves_accumulated_gradients,
    a_panic_in_a_second_run_leaves_accumulated_gradients,
    a_nan_micro_batch_does_not_end_training,
    a_record_drops_what_was_accumulated_under_another_scale,
);
