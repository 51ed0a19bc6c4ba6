//! Clipping by the global norm equals clipping before a stock update. (Dropout under it is in
//! `tests/random/fidelity.rs`.)

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Trains a stock loop that clips each gradient by the coefficient that `choose` returns for all norms so far.
fn train_reference(
    mut model: Network,
    groups: &[&[Tensor<2>]],
    choose: impl Fn(&[f64]) -> f64,
) -> (Network, Vec<(f64, f64)>) {
    let mut optimizer = AdamConfig::new().init();
    let (mut norms, mut told) = (Vec::new(), Vec::new());
    for group in groups {
        let mut gradients = summed(&model, group, Network::loss);
        let norm = norm(&model, &mut gradients);
        norms.push(norm);
        let coefficient = choose(&norms);
        told.push((norm, coefficient));
        scale(&model, &mut gradients, coefficient);
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    (model, told)
}

/// Both exact configs. The first may run a closure twice.
const EXACT: [fn(f64) -> GlobalNormClippingConfig; 2] = [
    GlobalNormClippingConfig::Exact,
    GlobalNormClippingConfig::ExactInBuffer,
];

fn clipped(model: Network, clipping: GlobalNormClippingConfig) -> FusedOptimizer<Network> {
    FusedOptimizer::new(model, AdamConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::clipping(clipping))
        .unwrap()
}

/// Runs a step with a closure that may run twice.
fn step(fused: &mut FusedOptimizer<Network>, x: &Tensor<2>) -> Result<Tensor<1>, FusedError> {
    match fused.config().clipping {
        Some(GlobalNormClippingConfig::Exact(_)) => {
            fused.step_repeatable(LEARNING_RATE, |model| model.loss(x))
        }
        _ => fused.step(LEARNING_RATE, |model| model.loss(x)),
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

fn exact_clipping_matches_stock(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device, 4);
    let steps: Vec<_> = batches.chunks(1).collect();
    let groups = vec![&batches[..3], &batches[3..]];
    // One clips always, one sometimes, one never, and one clips sums.
    for (groups, max_norm) in [(&steps, 0.01), (&steps, 3.0), (&steps, 1e9), (&groups, 0.1)] {
        let clip = |norms: &[f64]| (max_norm / norms[norms.len() - 1]).min(1.0);
        let (stock, told) = train_reference(initial.copied(), groups, clip);
        for exact in EXACT {
            let mut fused = clipped(initial.copied(), exact(max_norm));
            for (group, told) in groups.iter().zip(&told) {
                let (last, first) = group.split_last().unwrap();
                for x in first {
                    fused.accumulate(|model| model.loss(x)).unwrap();
                }
                step(&mut fused, last).unwrap();
                assert_told(&fused, *told);
            }
            assert_equal_weights(&stock, &fused.model());
        }
    }
}

fn lagged_clipping_matches_stock(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device, 4);
    let steps: Vec<_> = batches.chunks(1).collect();
    let clip = |norms: &[f64]| match norms {
        [.., before, _] => (0.5 / before).min(1.0),
        _ => 1.0,
    };
    let (stock, told) = train_reference(initial.copied(), &steps, clip);
    // The latter measures the gradients of each step before it applies them.
    for scaling in [None, Some(LossScalingConfig::new())] {
        let config = FusedConfig::lagged(0.5).with_loss_scaling(scaling);
        let mut fused = FusedOptimizer::new(initial.copied(), AdamConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap();
        for (step, told) in steps.iter().zip(&told) {
            step_group(&mut fused, LEARNING_RATE, step, Network::loss);
            assert_told(&fused, *told);
        }
        assert_equal_weights(&stock, &fused.model());
    }
}

/// A failure drops all sums: a norm that is not finite, or a hook after some were applied.
fn clipping_in_buffer_failed_step_leaves_nothing(device: &Device) {
    let exact = GlobalNormClippingConfig::ExactInBuffer(1.0);
    let x = batches(device, 1).remove(0);
    let mut fused = clipped(Network::init(device), exact);
    fused.accumulate(|model| model.loss(&x)).unwrap();
    let infinite = Tensor::<2>::full([5, 6], f32::INFINITY, device);
    let error = step(&mut fused, &infinite);
    assert_matches!(error, Err(FusedError::NormNotFinite { .. }));
    assert_nothing_accumulated(&mut fused);

    let calls = AtomicUsize::new(0);
    let stops = hook(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        1 => Answer::Stop("the second"),
        _ => Answer::Use,
    });
    let mut fused = clipped(Network::init(device), exact).with_hook(ParamGroup::all(), stops);
    step(&mut fused, &x).unwrap_err();
    assert_nothing_accumulated(&mut fused);
    step(&mut fused, &x).unwrap();
}

/// With LoRA the base is frozen, or trained and updated at the end of the pass from an ordinary gradient. Plain SGD
/// moves all of them together by the maximum norm.
fn retained_parameters_are_clipped_with_others(device: &Device) {
    let lora = || -> Linear {
        let linear = LinearConfig::new(6, 4).init(device);
        linear.apply_lora(Lora::new(2, 4.0))
    };
    for (model, retained) in [(lora(), 0), (lora().unfreeze(), 1)] {
        let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::exact(0.25))
            .unwrap();
        let (initial, parts_before) = (fused.model(), parts(&fused));
        assert_eq!(parts_before.1, retained);
        let x = Tensor::<2>::random([5, 6], Distribution::Default, device);
        for _ in 0..2 {
            let before = fused.model();
            fused
                .step_repeatable(1.0, |model| {
                    (model.forward(x.clone()) + 1.0).powi_scalar(2).sum()
                })
                .unwrap();
            assert!(fused.last_step().gradient_norm.unwrap() > 0.25);
            let moved = distance(&before, &fused.model());
            assert!((moved - 0.25).abs() < 1e-4, "moved by {moved}");
        }
        assert_changed(&initial, &fused.model(), |path| {
            retained == 1 || path.contains("lora")
        });
        assert_eq!(parts(&fused), parts_before);
    }
}

fn clipping_infinite_norm_changes_nothing(device: &Device) {
    let initial = Network::init(device);
    // Clones of a model share its running statistics.
    let before = initial.copied();
    let mut fused = clipped(initial, GlobalNormClippingConfig::Exact(1.0));
    let x = Tensor::<2>::full([5, 6], f32::INFINITY, device);
    let error = step(&mut fused, &x);
    assert_matches!(error, Err(FusedError::NormNotFinite { .. }));
    assert_equal_weights(&before, &fused.model());
    assert!(fused.to_record().is_empty());
}

fn panic_in_measuring_pass_leaves_running_statistics(device: &Device) {
    let initial = Network::init(device);
    let before = weights(&initial.valid());
    let x = batches(device, 1).remove(0);
    let mut fused = clipped(initial, GlobalNormClippingConfig::Exact(1.0));
    panic_of(|| {
        fused
            .step_repeatable(LEARNING_RATE, |model| {
                let loss = model.loss(&x);
                assert!(x.dims()[0] == 0, "after the forward pass");
                loss
            })
            .unwrap()
    });
    assert_eq!(weights(&fused.valid()), before);
    step(&mut fused, &x).unwrap();
    assert_ne!(weights(&fused.valid()), before);
}

on_every_backend!(
    panic_in_measuring_pass_leaves_running_statistics,
    exact_clipping_matches_stock,
    lagged_clipping_matches_stock,
    clipping_in_buffer_failed_step_leaves_nothing,
    retained_parameters_are_clipped_with_others,
    clipping_infinite_norm_changes_nothing,
);

#[test]
fn clipping_mistakes_are_errors() {
    let device = flex();
    let fused = || FusedOptimizer::new(Network::init(&device), AdamConfig::new().init()).unwrap();
    for clipping in [EXACT[0], EXACT[1], GlobalNormClippingConfig::Lagged] {
        for max_norm in [0.0, -1.0, f64::NAN] {
            let error = fused().with_config(FusedConfig::clipping(clipping(max_norm)));
            assert_says(&error.unwrap_err(), "must be positive");
        }
    }
    let mut fused = fused().with_config(FusedConfig::exact(1.0)).unwrap();
    let unchanged = fused.model();
    let x = Tensor::<2>::ones([5, 6], &device);
    let error = fused.step(0.1, |model| model.loss(&x)).unwrap_err();
    assert_eq!(error, FusedError::RunsTwice);
    for way in ["step_repeatable", "ExactInBuffer"] {
        assert_says(&error, way);
    }
    assert_equal_weights(&unchanged, &fused.model());
}

#[test]
fn lagged_clipping_after_skipped_step_clips_by_last_finite_norm() {
    let device = &flex();
    let scaling = LossScalingConfig::new().with_overflow(Overflow::SkipStep);
    let config = FusedConfig::lagged(1e-3).with_loss_scaling(Some(scaling));
    let mut fused = FusedOptimizer::new(Squashed::init(device), SgdConfig::new().init())
        .unwrap()
        .with_config(config)
        .unwrap();
    let mut step = |x: &Tensor<2>| {
        fused.step_repeatable(0.01, |model| model.loss(x)).unwrap();
        fused.last_step().clone()
    };
    let x = &batches(device, 1)[0];
    let norm = step(x).gradient_norm.unwrap();
    assert!(step(&infinite(device)).overflowed);
    let clipping = step(x).clipping.unwrap();
    assert!((clipping - 1e-3 / norm).abs() < 1e-9, "{clipping}");
}
