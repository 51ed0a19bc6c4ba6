//! Policies with and without offload, on every backend. The pairs in `tests/pairs` compare each policy with stock Burn
//! on the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;

use super::*;

/// Returns `fused` with the offload `mode`, and with the rest of its config.
fn waiting(fused: Fused, device: &Device, mode: Option<Offload>) -> Fused {
    let offload = mode.map(|mode| config(device, mode));
    let config = fused.config().clone().with_offload(offload);
    fused.with_config_on(config, device).unwrap()
}

/// The host sums squares in another order than the device, so the norm and the clipped gradients agree to six digits.
/// Gradients on the host are measured and applied there as in a second pass.
fn offloaded_clipping_equals_clipping_without(device: &Device) {
    // A move of 0.05 in the norm is 2e-3 an element.
    let relative = if is_exact(device) { 1e-4 } else { 1e-3 };
    let initial = Network::init(device);
    let batches = batches(device);
    let trained = |clipping: GlobalNormClippingConfig, rate: f64, mode| {
        let model = twin(&initial);
        let fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
        let fused = fused.with_config(FusedConfig::clipping(clipping)).unwrap();
        let mut fused = waiting(fused, device, mode);
        let steps = batches.iter().map(|x| {
            let loss = |model: &Network| model.loss(x.clone());
            match clipping {
                GlobalNormClippingConfig::ExactInBuffer(_) => fused.step(rate, loss).unwrap(),
                _ => fused.step_repeatable(rate, loss).unwrap(),
            };
            let report = fused.last_step();
            [report.gradient_norm, report.clipping].map(Option::unwrap)
        });
        let steps: Vec<_> = steps.flatten().collect();
        (fused.model(), steps)
    };
    for norm in [0.05, 1e6] {
        let (exact, in_buffer) = (
            GlobalNormClippingConfig::Exact(norm),
            GlobalNormClippingConfig::ExactInBuffer(norm),
        );
        for clipping in [exact, GlobalNormClippingConfig::Lagged(norm)] {
            // Only if every step is clipped a large rate keeps the training stable.
            let is_always_clipped = norm < 1.0 && clipping == exact;
            let rate = if is_always_clipped { 1.0 } else { RATE };
            let (plain, expected) = trained(clipping, rate, None);
            for mode in modes(device) {
                let (fused, found) = trained(clipping, rate, Some(mode));
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= relative * a;
                assert!(expected.iter().zip(&found).all(near), "{mode:?}: {found:?}");
                assert_near_weights(&plain, &fused, 0.1 * relative, relative);
                if clipping == exact {
                    let (buffered, in_one_pass) = trained(in_buffer, rate, Some(mode));
                    assert_equal_weights(&fused, &buffered);
                    assert_eq!(found, in_one_pass, "{mode:?}");
                }
            }
        }
    }
}

/// With parameter groups, a schedule, and hooks that receive every gradient once.
fn offloaded_accumulation_with_hooks_equals_without(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let calls: Arc<AtomicUsize> = Arc::default();
    let fuse = |mode| {
        let model = twin(&initial);
        calls.store(0, Ordering::Relaxed);
        let calls = calls.clone();
        let halves = hook(move |it| {
            let before = calls.fetch_add(1, Ordering::Relaxed);
            match it.path {
                // After the first calls, so that all parameters move.
                "blocks.1.contract.weight" if before >= 60 => Answer::Veto,
                _ => Answer::Scale(0.5),
            }
        });
        let matrices = ParamGroup::from_predicate("weight");
        let momentum = optim::SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let optimizer = AdamWConfig::new().init();
        let optimizer = optimizer.with_group(matrices, momentum.build(), None);
        let fused = FusedOptimizer::new(model, optimizer).unwrap();
        waiting(fused.with_hook(ParamGroup::all(), halves), device, mode)
    };
    assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
        for (step, pair) in batches.chunks(2).chain(batches.chunks(3)).enumerate() {
            let before = calls.load(Ordering::Relaxed);
            let rate = ModuleLearningRate::from(RATE / (1.0 + step as f64));
            let (last, first) = pair.split_last().unwrap();
            for x in first {
                fused.accumulate(|model| model.loss(x.clone())).unwrap();
            }
            match step {
                0 => fused.step_accumulated(rate).unwrap(),
                _ => drop(fused.step(rate, |model| model.loss(last.clone())).unwrap()),
            }
            let parameters = fused.num_released();
            assert_eq!(calls.load(Ordering::Relaxed), before + parameters);
        }
    });
}

fn offloaded_accumulation_in_state_equals_without(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let mut modes = modes(device);
    modes.retain(|mode| *mode != Offload::States);
    let fuse = |mode| {
        let model = twin(&initial);
        let adamw = optim::AdamWConfig::new().build();
        let fused = FusedOptimizer::accumulating_in_state(model, adamw).unwrap();
        waiting(fused, device, mode)
    };
    assert_offload_changes_nothing(device, &modes, fuse, |fused| {
        for pair in batches.chunks(2) {
            fused
                .accumulate(|model| model.loss(pair[0].clone()))
                .unwrap();
            fused
                .step(RATE, |model| model.loss(pair[1].clone()))
                .unwrap();
        }
    });
}

fn offloaded_loss_scaling_equals_without(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        let scaling = LossScalingConfig::new().with_overflow(overflow);
        let fuse = |mode| {
            let model = twin(&initial);
            let fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
            let fused = fused.with_config(FusedConfig::scaling(scaling)).unwrap();
            waiting(fused, device, mode)
        };
        assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
            for (step, x) in batches.iter().enumerate() {
                // One value exceeds the range of f32.
                let factor = if step == 2 { 1e38 } else { 1.0 };
                fused
                    .step_repeatable(RATE, |model| model.loss(x.clone()) * factor)
                    .unwrap();
                assert!(step != 2 || fused.last_step().overflowed);
            }
        });
    }
}

fn offloaded_backward_in_closure_equals_without(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    let fuse = |mode| adam(twin(&initial), device, mode);
    assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
        for x in &batches {
            fused
                .step_with_backward(RATE, |model| {
                    let gradients = model.loss(x.clone()).backward();
                    ((), GradientsParams::from_grads(gradients, model))
                })
                .unwrap();
        }
    });
}

on_every_backend!(
    offloaded_clipping_equals_clipping_without,
    offloaded_accumulation_with_hooks_equals_without,
    offloaded_accumulation_in_state_equals_without,
    offloaded_loss_scaling_equals_without,
    offloaded_backward_in_closure_equals_without,
);
