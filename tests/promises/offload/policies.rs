//! Every policy, with what waits in host memory and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;

use super::*;

type Fused = FusedOptimizer<Network>;

/// Trains the same way without offload and in every mode, and compares the weights.
fn assert_offload_changes_nothing(
    device: &Device,
    modes: &[Offload],
    fuse: impl Fn(Network) -> Fused,
    train: impl Fn(&mut Fused, &[Tensor<2, Int>]),
) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    let mut plain = fuse(copy());
    train(&mut plain, &batches);
    for &mode in modes {
        let fused = fuse(copy());
        let offloaded = fused
            .config()
            .clone()
            .with_offload(Some(config(device, mode)));
        let mut fused = fused.with_config_on_ok(offloaded, device);
        train(&mut fused, &batches);
        assert_equal_weights(&plain.model(), &fused.model());
        let (expected, found) = (plain.last_step(), fused.last_step());
        assert_eq!(found.updated, expected.updated, "{mode:?}");
        assert_eq!(found.vetoed, expected.vetoed, "{mode:?}");
        assert_eq!(found.overflowed, expected.overflowed, "{mode:?}");
        let norms = [expected, found].map(|step| step.gradient_norm.unwrap_or_default());
        let close = (norms[0] - norms[1]).abs() <= 1e-3 * norms[0];
        assert!(close, "{mode:?}: a norm of {norms:?}");
        assert_changed(&initial, &fused.model(), |_| true);
    }
}

fn adam(model: Network) -> Fused {
    FusedOptimizer::new_ok(model, AdamConfig::new().init())
}

/// Gradients that wait on the host are measured and used there as those of a second pass are.
fn exact_clipping_in_the_buffer_is_that_in_two_passes(device: &Device) {
    let initial = Network::init(device);
    let batches = batches(device);
    for mode in modes(device) {
        let train = |clipping| {
            let model = copy(&initial, || Network::init(device));
            let offloaded = FusedConfig::offload(config(device, mode));
            let offloaded = offloaded.with_clipping(Some(clipping));
            let mut fused = adam(model).with_config_on_ok(offloaded, device);
            let told = batches.iter().map(|x| {
                let loss = |model: &Network| model.loss(x.clone());
                match clipping {
                    GlobalNormClippingConfig::Exact(_) => fused.step_repeatable_ok(RATE, loss),
                    _ => fused.step_ok(RATE, loss),
                };
                (fused.last_step().gradient_norm, fused.last_step().clipping)
            });
            let told: Vec<_> = told.collect();
            (fused.model(), told)
        };
        let (expected, told) = train(GlobalNormClippingConfig::Exact(0.05));
        let (found, told_too) = train(GlobalNormClippingConfig::ExactInBuffer(0.05));
        assert_equal_weights(&expected, &found);
        assert_eq!(told, told_too, "{mode:?}");
        assert_changed(&initial, &found, |_| true);
    }
}

/// The host adds up squares in another order than the device, so the norm, and what is clipped by it, agree in six
/// digits.
fn clipping_is_the_same(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    let policies = [0.05, 1e6].map(|norm| {
        let exact = GlobalNormClippingConfig::Exact(norm);
        [exact, GlobalNormClippingConfig::Lagged(norm)]
    });
    for clipping in policies.into_iter().flatten() {
        let train = |fused: &mut Fused| {
            let steps = batches.iter().map(|x| {
                fused.step_repeatable_ok(RATE, |model| model.loss(x.clone()));
                fused.last_step().clipping.unwrap()
            });
            steps.collect::<Vec<_>>()
        };
        let mut plain = sgd(copy()).with_config_ok(FusedConfig::clipping(clipping));
        let expected = train(&mut plain);
        for mode in modes(device) {
            let mut fused = sgd(copy()).with_config_on_ok(
                FusedConfig::clipping(clipping).with_offload(Some(config(device, mode))),
                device,
            );
            let found = train(&mut fused);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-3 * a;
            assert!(expected.iter().zip(&found).all(near), "{mode:?}: {found:?}");
            assert_near_weights(&plain.model(), &fused.model(), 1e-4, 1e-3);
        }
    }
}

fn sgd(model: Network) -> Fused {
    FusedOptimizer::new_ok(model, SgdConfig::new().init())
}

/// Where clipping does something, the norm is that of the whole model, and the update that of the clipped
/// gradients: plain SGD moves all parameters together by the maximum.
fn gradients_are_clipped_to_the_norm_of_all(device: &Device) {
    let batches = batches(device);
    for mode in modes(device) {
        let mut fused = FusedOptimizer::new_ok(Network::init(device), SgdConfig::new().init())
            .with_config_on_ok(
                FusedConfig::exact(0.125).with_offload(Some(config(device, mode))),
                device,
            );
        for x in &batches {
            let before = weights(&fused.model());
            fused.step_repeatable_ok(1.0, |model| model.loss(x.clone()));
            let report = fused.last_step().clone();
            let after = weights(&fused.model());
            let moved = before.iter().zip(&after).flat_map(|((path, a), (_, b))| {
                let is_trained = !path.contains("running");
                let pairs = a.iter::<f64>().zip(b.iter::<f64>());
                pairs.filter(move |_| is_trained).collect::<Vec<_>>()
            });
            let moved = moved.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let expected = report.gradient_norm.unwrap() * report.clipping.unwrap();
            assert!(
                (moved - expected).abs() < 1e-4,
                "{mode:?}: {moved} of {expected}"
            );
            assert!(expected <= 0.125 + 1e-6);
        }
    }
}

fn accumulation_is_the_same(device: &Device) {
    assert_offload_changes_nothing(device, &modes(device), adam, |fused, batches| {
        let (last, before) = batches.split_last().unwrap();
        for pair in before.chunks(2) {
            for x in pair {
                fused.accumulate_ok(|model| model.loss(x.clone()));
            }
            fused.step_accumulated_ok(RATE);
        }
        fused.accumulate_ok(|model| model.loss(batches[0].clone()));
        fused.step_ok(RATE, |model| model.loss(last.clone()));
    });
}

fn accumulation_in_the_state_is_the_same(device: &Device) {
    let mut modes = modes(device);
    modes.retain(|mode| *mode != Offload::States);
    assert_offload_changes_nothing(
        device,
        &modes,
        |model| FusedOptimizer::accumulating_in_state_ok(model, optim::AdamWConfig::new().build()),
        |fused, batches| {
            for pair in batches.chunks(2) {
                fused.accumulate_ok(|model| model.loss(pair[0].clone()));
                fused.step_ok(RATE, |model| model.loss(pair[1].clone()));
            }
        },
    );
}

fn loss_scaling_with_overflows_is_the_same(device: &Device) {
    for overflow in [Overflow::SkipStep, Overflow::SkipParameter] {
        let scaling = LossScalingConfig::new().with_overflow(overflow);
        assert_offload_changes_nothing(
            device,
            &modes(device),
            |model| adam(model).with_config_ok(FusedConfig::scaling(scaling)),
            |fused, batches| {
                for (step, x) in batches.iter().enumerate() {
                    // Beyond what f32 holds, once.
                    let factor = if step == 2 { 1e38 } else { 1.0 };
                    fused.step_repeatable_ok(RATE, |model| model.loss(x.clone()) * factor);
                }
            },
        );
    }
}

fn hooks_see_every_gradient_once(device: &Device) {
    let calls: Arc<AtomicUsize> = Arc::default();
    assert_offload_changes_nothing(
        device,
        &modes(device),
        |model| {
            calls.store(0, Ordering::Relaxed);
            let calls = calls.clone();
            let halves = hook(move |it| {
                let before = calls.fetch_add(1, Ordering::Relaxed);
                match it.path {
                    // After the first call, so that all parameters move.
                    "blocks.1.contract.weight" if before >= 60 => Answer::Veto,
                    _ => Answer::Scale(0.5),
                }
            });
            adam(model).with_hook(ParamGroup::all(), halves)
        },
        |fused, batches| {
            for x in batches {
                let before = calls.load(Ordering::Relaxed);
                fused.step_ok(RATE, |model| model.loss(x.clone()));
                let parameters = fused.num_released();
                assert_eq!(calls.load(Ordering::Relaxed), before + parameters);
            }
        },
    );
}

fn groups_and_schedules_are_the_same(device: &Device) {
    assert_offload_changes_nothing(
        device,
        &modes(device),
        |model| {
            let matrices = ParamGroup::from_predicate("weight");
            let optimizer = AdamWConfig::new().init();
            let momentum = optim::SgdConfig::new()
                .with_momentum(Some(burn::optim::momentum::MomentumConfig::new()));
            FusedOptimizer::new_ok(
                model,
                optimizer.with_group(matrices, momentum.build(), None),
            )
        },
        |fused, batches| {
            for (step, x) in batches.iter().enumerate() {
                let rate = ModuleLearningRate::from(RATE / (1.0 + step as f64));
                fused.step_ok(rate, |model| model.loss(x.clone()));
            }
        },
    );
}

fn a_pass_that_the_closure_goes_back_itself_is_the_same(device: &Device) {
    assert_offload_changes_nothing(device, &modes(device), adam, |fused, batches| {
        for x in batches {
            fused.step_with_backward_ok(RATE, |model| {
                let gradients = model.loss(x.clone()).backward();
                ((), GradientsParams::from_grads(gradients, model))
            });
        }
    });
}

on_every_backend!(
    exact_clipping_in_the_buffer_is_that_in_two_passes,
    clipping_is_the_same,
    gradients_are_clipped_to_the_norm_of_all,
    accumulation_is_the_same,
    accumulation_in_the_state_is_the_same,
    loss_scaling_with_overflows_is_the_same,
    hooks_see_every_gradient_once,
    groups_and_schedules_are_the_same,
    a_pass_that_the_closure_goes_back_itself_is_the_same,
);
