//! Clipping by the global norm equals clipping before a stock update. (Dropout under it is in
//! `tests/random.rs`.)

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::optim::*;
use proptest::prelude::*;

use super::*;
use crate::backends::on_every_backend;

/// A stock loop that clips each gradient by the coefficient that `choose` makes of all norms so far.
fn train_reference(
    mut model: Network,
    batches: &[Vec<Tensor<2>>],
    choose: impl Fn(&[f64]) -> f64,
) -> (Network, Vec<(f64, f64)>) {
    let mut optimizer = AdamConfig::new().init();
    let mut norms = Vec::new();
    let mut told = Vec::new();
    for group in batches {
        let mut accumulator = GradientsAccumulator::new();
        for x in group {
            let gradients = model.loss(x.clone()).backward();
            accumulator.accumulate(&model, GradientsParams::from_grads(gradients, &model));
        }
        let mut gradients = accumulator.grads();
        norms.push(norm(&model, &mut gradients));
        let coefficient = choose(&norms);
        told.push((norms[norms.len() - 1], coefficient));
        scale(&model, &mut gradients, coefficient);
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    (model, told)
}

/// Both that are exact, of which the first may run a closure twice.
const EXACT: [fn(f64) -> GlobalNormClippingConfig; 2] = [
    GlobalNormClippingConfig::Exact,
    GlobalNormClippingConfig::ExactInBuffer,
];

fn clipped(model: Network, clipping: GlobalNormClippingConfig) -> FusedOptimizer<Network> {
    FusedOptimizer::new_ok(model, AdamConfig::new().init())
        .with_config_ok(FusedConfig::clipping(clipping))
}

/// A step with a closure that may run as often as it must.
fn step(fused: &mut FusedOptimizer<Network>, x: &Tensor<2>) -> Result<Tensor<1>, FusedError> {
    let loss = |model: &Network| model.loss(x.clone());
    match fused.config().clipping {
        Some(GlobalNormClippingConfig::Exact(_)) => fused.step_repeatable(LEARNING_RATE, loss),
        _ => fused.step(LEARNING_RATE, loss),
    }
}

fn assert_told(fused: &FusedOptimizer<Network>, (norm, coefficient): (f64, f64)) {
    let report = fused.last_step();
    let exact = fused.model().devices().iter().all(is_exact);
    let tolerance = if exact { 1e-9 } else { 1e-3 };
    let near = |a: f64, b: f64| (a - b).abs() <= tolerance * b.abs();
    assert!(near(report.gradient_norm.unwrap(), norm));
    assert!(near(report.clipping.unwrap(), coefficient));
}

fn exact_clipping_equals_clipping_in_stock(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let groups: Vec<_> = batches(device, 4).into_iter().map(|x| vec![x]).collect();
    // One that clips always, one that does so now and then, one that never does.
    for max_norm in [0.01, 3.0, 1e9] {
        let clip = |norms: &[f64]| (max_norm / norms[norms.len() - 1]).min(1.0);
        let (stock, told) = train_reference(copy(), &groups, clip);
        for exact in EXACT {
            let mut fused = clipped(copy(), exact(max_norm));
            for (group, told) in groups.iter().zip(&told) {
                step(&mut fused, &group[0]).unwrap();
                assert_told(&fused, *told);
            }
            assert_equal_weights(&stock, &fused.model());
        }
    }
}

fn lagged_clipping_uses_the_norm_of_the_step_before(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let groups: Vec<_> = batches(device, 4).into_iter().map(|x| vec![x]).collect();
    let clip = |norms: &[f64]| match norms {
        [.., before, _] => (0.5 / before).min(1.0),
        _ => 1.0,
    };
    let (stock, told) = train_reference(copy(), &groups, clip);
    let config = FusedConfig::lagged(0.5);
    // The latter measures the gradients of each step before it uses them.
    for scaling in [None, Some(LossScalingConfig::new())] {
        let mut fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init())
            .with_config_ok(config.clone().with_loss_scaling(scaling));
        for (group, told) in groups.iter().zip(&told) {
            fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(group[0].clone()));
            assert_told(&fused, *told);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

fn accumulated_gradients_are_clipped_as_their_sum(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device, 4);
    let groups = [batches[..3].to_vec(), batches[3..].to_vec()];
    let clip = |norms: &[f64]| (0.1 / norms[norms.len() - 1]).min(1.0);
    let (stock, told) = train_reference(copy(), &groups, clip);
    for exact in EXACT {
        let mut fused = clipped(copy(), exact(0.1));
        for (group, told) in groups.iter().zip(&told) {
            let (last, before) = group.split_last().unwrap();
            for x in before {
                fused.accumulate_ok(|model| model.loss(x.clone()));
            }
            step(&mut fused, last).unwrap();
            assert_told(&fused, *told);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

/// A failure drops all sums: a norm that is not finite, or a hook after some were applied.
fn a_step_that_fails_leaves_nothing_in_the_buffer(device: &Device) {
    let exact = GlobalNormClippingConfig::ExactInBuffer(1.0);
    let x = batches(device, 1).remove(0);
    let mut fused = clipped(Network::init(device), exact);
    fused.accumulate_ok(|model| model.loss(x.clone()));
    let infinite = Tensor::<2>::full([5, 6], f32::INFINITY, device);
    let error = step(&mut fused, &infinite).unwrap_err();
    assert!(matches!(error, FusedError::NormNotFinite { .. }));
    let nothing = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(nothing, FusedError::NothingAccumulated);

    let calls = AtomicUsize::new(0);
    let stops = hook(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        1 => Answer::Stop("the second"),
        _ => Answer::Use,
    });
    let mut fused = clipped(Network::init(device), exact).with_hook(ParamGroup::all(), stops);
    step(&mut fused, &x).unwrap_err();
    let nothing = fused.step_accumulated(LEARNING_RATE).unwrap_err();
    assert_eq!(nothing, FusedError::NothingAccumulated);
    step(&mut fused, &x).unwrap();
}

/// With LoRA the base is frozen, or in training and stepped at the end of the pass from an ordinary
/// gradient. Plain SGD moves all of them together by the maximum.
fn parameters_beside_the_taps_are_clipped_with_the_others(device: &Device) {
    let lora = || {
        let linear = LinearConfig::new(6, 4).init(device);
        linear.apply_lora(Lora::new(2, 4.0))
    };
    for (model, left) in [(lora(), 0), (lora().unfreeze(), 1)] {
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_config_ok(FusedConfig::exact(0.25));
        let parts = (
            fused.num_released(),
            fused.num_retained(),
            fused.num_frozen(),
        );
        assert_eq!(parts.1, left);
        let x = Tensor::<2>::random([5, 6], Distribution::Default, device);
        for _ in 0..2 {
            let before = weights(&fused.model());
            fused.step_repeatable_ok(1.0, |model| {
                (model.forward(x.clone()) + 1.0).powi_scalar(2).sum()
            });
            assert!(fused.last_step().gradient_norm.unwrap() > 0.25);
            let after = weights(&fused.model());
            let squares = before
                .iter()
                .zip(&after)
                .map(|((path, before), (_, after))| {
                    let pairs = before.iter::<f64>().zip(after.iter::<f64>());
                    let squares = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                    let stays = left == 0 && !path.contains("lora") && !path.contains("bias");
                    assert!(!stays || squares == 0.0, "`{path}` is frozen");
                    squares
                });
            let moved = squares.sum::<f64>().sqrt();
            assert!((moved - 0.25).abs() < 1e-4, "moved by {moved}");
        }
        assert_eq!(
            (
                fused.num_released(),
                fused.num_retained(),
                fused.num_frozen()
            ),
            parts
        );
    }
}

fn a_norm_that_is_not_finite_changes_nothing(device: &Device) {
    let initial = Network::init(device);
    // Clones of a model share its running statistics.
    let before = copy(&initial, || Network::init(device));
    let mut fused = clipped(initial, GlobalNormClippingConfig::Exact(1.0));
    let x = Tensor::<2>::full([5, 6], f32::INFINITY, device);
    let error = step(&mut fused, &x);
    assert!(matches!(error, Err(FusedError::NormNotFinite { .. })));
    assert_equal_weights(&before, &fused.model());
    assert!(fused.to_record().is_empty());
}

fn a_panic_in_the_measuring_pass_leaves_running_statistics(device: &Device) {
    let initial = Network::init(device);
    let before = weights(&initial.valid());
    let x = batches(device, 1).remove(0);
    let mut fused = FusedOptimizer::new_ok(initial, SgdConfig::new().init())
        .with_config_ok(FusedConfig::exact(1.0));
    let step = std::panic::AssertUnwindSafe(|| {
        fused.step_repeatable_ok(LEARNING_RATE, |model| {
            let loss = model.loss(x.clone());
            assert!(x.dims()[0] == 0, "after the forward pass");
            loss
        })
    });
    std::panic::catch_unwind(step).expect_err("it panics");
    assert_eq!(weights(&fused.valid()), before);
    fused.step_repeatable_ok(LEARNING_RATE, |model| model.loss(x.clone()));
    assert!(weights(&fused.valid()) != before);
}

on_every_backend!(
    a_panic_in_the_measuring_pass_leaves_running_statistics,
    exact_clipping_equals_clipping_in_stock,
    lagged_clipping_uses_the_norm_of_the_step_before,
    accumulated_gradients_are_clipped_as_their_sum,
    a_step_that_fails_leaves_nothing_in_the_buffer,
    parameters_beside_the_taps_are_clipped_with_the_others,
    a_norm_that_is_not_finite_changes_nothing,
);

#[test]
fn mistakes_in_clipping_get_a_clear_error() {
    let device = Device::flex().autodiff();
    let fused = || FusedOptimizer::new_ok(Network::init(&device), AdamConfig::new().init());
    for max_norm in [0.0, -1.0, f64::NAN] {
        for clipping in [
            GlobalNormClippingConfig::Exact,
            GlobalNormClippingConfig::ExactInBuffer,
            GlobalNormClippingConfig::Lagged,
        ] {
            let error = fused()
                .with_config(FusedConfig::clipping(clipping(max_norm)))
                .unwrap_err();
            assert!(error.to_string().contains("must be positive"));
        }
    }
    let before = fused();
    let unchanged = before.model();
    let mut fused = before.with_config_ok(FusedConfig::exact(1.0));
    let x = Tensor::<2>::ones([5, 6], &device);
    let error = fused.step(0.1, |model| model.loss(x.clone()));
    let error = error.unwrap_err();
    assert_eq!(error, FusedError::RunsTwice);
    assert!(error.to_string().contains("step_repeatable"));
    assert!(error.to_string().contains("ExactInBuffer"));
    assert_equal_weights(&unchanged, &fused.model());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_step_is_longer_than_the_largest_norm(max_norm in 0.001f64..10.0, rows in 1usize..6) {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(4, 3).init(&device);
        let before = weights(&model);
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_config_ok(FusedConfig::exact(max_norm));
        let x = Tensor::<2>::random([rows, 4], Distribution::Normal(0.0, 3.0), &device);
        fused.step_repeatable_ok(1.0, |model| model.forward(x.clone()).powi_scalar(2).sum());
        let squares = before.iter().zip(weights(&fused.model())).map(|((_, a), (_, b))| {
            a.iter::<f64>().zip(b.iter::<f64>()).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
        });
        let moved = squares.sum::<f64>().sqrt();
        prop_assert!(moved <= max_norm * 1.001 + 1e-5, "moved by {moved}");
    }
}
