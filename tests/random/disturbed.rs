//! What becomes of a step while another thread draws random numbers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backburn::{
    Constant, FusedConfig, FusedError, FusedOptimizer, GlobalNormClippingConfig, GradientFlow,
    GradientHook, HookedParameter, gradient_checkpointing,
};
use burn::module::{Param, ParamGroup};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

use crate::compare::{assert_changed, assert_equal_weights, copy};
use crate::{Model, distance, on_the_cpu};

/// Says so when dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Draws from the generator of `device` on another thread, now and then, while `work` runs.
fn disturbed<R>(device: &Device, pause: Duration, work: impl FnOnce() -> R) -> R {
    let (done, device) = (AtomicBool::new(false), device.clone().inner());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(Tensor::<1>::random([3], Distribution::Default, &device).into_data());
                std::thread::sleep(pause);
            }
        });
        let _done = Done(&done);
        work()
    })
}

/// The loss is linear in the weight, so its gradient is what the forward pass has multiplied it by: with
/// the same mask in both runs, and zero where the mask is.
fn a_disturbed_block_sees_its_numbers_again_or_ends_the_step(device: &Device) {
    let dropout = DropoutConfig::new(0.5).init();
    let weight = Param::from_tensor(Tensor::<1>::ones([64], device));
    let model = (weight, dropout);
    let seen = Gradient::default();
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
        .with_hook(ParamGroup::all(), seen.clone());
    let (mut right, mut refused) = (0, 0);
    for pause in [0, 1, 20, 1000] {
        disturbed(device, Duration::from_micros(pause), || {
            for _ in 0..25 {
                type Model = (Param<Tensor<1>>, Dropout);
                let drop = |(weight, dropout): &Model, x: Tensor<1>| {
                    // So long that other threads come in between.
                    let noise = Tensor::<1>::random([50_000], Distribution::Default, &x.device());
                    dropout.forward(weight.val() * x) + noise.mean().detach() * 0.0
                };
                let step = fused.try_step(0.0, |model| {
                    let x = Tensor::ones([64], device);
                    let dropped = gradient_checkpointing(model, x, drop);
                    (dropped.clone().sum(), dropped.detach())
                });
                match step {
                    Ok((_, dropped)) => {
                        let dropped: Vec<f32> = dropped.into_data().iter().collect();
                        assert_eq!(*seen.0.lock().unwrap(), dropped, "another mask");
                        right += 1;
                    }
                    Err(FusedError::RandomNumbers { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    assert_eq!(right + refused, 100);
    assert!(right > 0);
}

/// A data loader that draws noise while it fills its queue: for a third of a second, more or less without a pause.
fn a_loader_that_draws_for_a_while_does_not_end_a_training(device: &Device) {
    let model = LinearConfig::new(8, 8).init(device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    let x = Tensor::<2>::random([4, 8], Distribution::Default, device);
    let inner = device.clone().inner();
    for clipping in [None, Some(GlobalNormClippingConfig::Exact(1e-3))] {
        if let Some(clipping) = clipping {
            fused = fused.with_config(FusedConfig::new().with_clipping(Some(clipping)));
        }
        let start = Instant::now();
        let drawn = move |device: &Device| {
            if start.elapsed() < Duration::from_millis(300) {
                // As another thread would.
                Tensor::<1>::random([3], Distribution::Default, device);
            }
        };
        let step = fused.try_step_repeatable(1e-2, |model| {
            let block = (model.clone(), DropoutConfig::new(0.5).init());
            let second = Arc::new(AtomicBool::new(false));
            type Constants = Constant<(Device, Arc<AtomicBool>)>;
            let drop =
                move |(linear, dropout): &(Linear, Dropout),
                      (x, Constant((device, second))): (Tensor<2>, Constants)| {
                    if second.swap(true, Ordering::Relaxed) {
                        drawn(&device);
                    }
                    dropout.forward(linear.forward(x))
                };
            let input = (x.clone(), Constant((inner.clone(), second)));
            gradient_checkpointing(&block, input, drop).mean()
        });
        step.unwrap();
        assert!(
            start.elapsed() > Duration::from_millis(300),
            "it is disturbed"
        );
    }
}

/// Keeps the last gradient.
#[derive(Clone, Default)]
struct Gradient(Arc<Mutex<Vec<f32>>>);

impl GradientHook for Gradient {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        *self.0.lock().unwrap() = gradient.to_data().iter().collect();
        GradientFlow::Continue(gradient)
    }
}

/// Blocks and passes that draw nothing don't mind.
fn what_draws_nothing_is_not_disturbed(device: &Device) {
    let initial: Vec<Linear> = (0..4)
        .map(|_| LinearConfig::new(8, 8).init(device))
        .collect();
    let init = || {
        (0..4)
            .map(|_| LinearConfig::new(8, 8).init(device))
            .collect()
    };
    let x = Tensor::<2>::random([16, 8], Distribution::Default, device);
    let train = |recompute: bool| {
        let model = copy(&initial, init);
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).with_config(
            FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(1e-2))),
        );
        for _ in 0..20 {
            fused.step_repeatable(1e-2, |model| {
                let run = |linear: &Linear, x| linear.forward(x).tanh();
                let forward = |x, linear| match recompute {
                    true => gradient_checkpointing(linear, x, run),
                    false => run(linear, x),
                };
                model.iter().fold(x.clone(), forward).powi_scalar(2).mean()
            });
        }
        fused.model()
    };
    let quiet = train(false);
    let disturbed = disturbed(device, Duration::ZERO, || train(true));
    assert_equal_weights(&quiet, &disturbed);
}

/// As in the test of both passes, beside a thread that draws.
fn disturbed_passes_of_exact_clipping_drop_the_same_elements_or_end_the_step(device: &Device) {
    let max_norm = 1e-3;
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let mut right = 0;
    for pause in [0, 20, 1000] {
        for _ in 0..10 {
            let before = Model::init(device);
            let mut fused = FusedOptimizer::new(before.clone(), SgdConfig::new().init())
                .with_config(
                    FusedConfig::new()
                        .with_clipping(Some(GlobalNormClippingConfig::Exact(max_norm))),
                );
            let step = disturbed(device, Duration::from_micros(pause), || {
                fused.try_step_repeatable(1.0, |model| model.loss(x.clone()))
            });
            let moved = distance(&before, &fused.model()) / max_norm;
            match step {
                Ok(_) => {
                    assert!(
                        (moved - 1.0).abs() < 1e-3,
                        "moved by {moved} of the maximum"
                    );
                    right += 1;
                }
                Err(FusedError::RandomNumbers { .. }) => assert_eq!(moved, 0.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(right > 0);
}

/// A thread draws in the second run of the block in the pass that updates, when later layers have moved.
fn a_step_that_another_thread_disturbs_updates_once(device: &Device) {
    let updates = Arc::new(Mutex::new(Vec::new()));
    let model: Vec<Linear> = (0..3)
        .map(|_| LinearConfig::new(8, 8).init(device))
        .collect();
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init())
        .with_config(FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(1e-3))))
        .with_hook(ParamGroup::all(), Noting(updates.clone()));
    let x = Tensor::<2>::random([4, 8], Distribution::Default, device);
    let inner = device.clone().inner();
    let second_runs = Arc::new(AtomicUsize::new(0));
    let before = fused.model();
    let result = fused.try_step_repeatable(1e-2, |model| {
        let block = (model[0].clone(), DropoutConfig::new(0.5).init());
        type Constants = Constant<(Device, Arc<AtomicUsize>)>;
        let drop =
            |(linear, dropout): &(Linear, Dropout),
             (x, Constant((device, second_runs))): (Tensor<2>, Constants)| {
                // The first is in the pass that measures.
                if linear.weight.val().is_tracked()
                    && second_runs.fetch_add(1, Ordering::Relaxed) > 0
                {
                    // As another thread would.
                    Tensor::<1>::random([3], Distribution::Default, &device);
                }
                dropout.forward(linear.forward(x))
            };
        let input = (x.clone(), Constant((inner.clone(), second_runs.clone())));
        let x = gradient_checkpointing(&block, input, drop);
        model[1..]
            .iter()
            .fold(x, |x, linear| linear.forward(x).tanh())
            .mean()
    });
    assert!(matches!(result, Err(FusedError::RandomNumbers { .. })));
    assert_changed(&before, &fused.model(), |path| !path.starts_with("0."));
    // And the message does not say otherwise.
    let message = result.unwrap_err().to_string();
    assert!(message.contains("have not moved"), "{message}");
    assert!(!message.contains("No parameter was updated"), "{message}");
    let mut updates = updates.lock().unwrap().clone();
    let found = updates.len();
    updates.sort_unstable();
    updates.dedup();
    assert_eq!(updates.len(), found, "{updates:?}");
}

/// Notes the paths of the gradients that are used.
struct Noting(Arc<Mutex<Vec<String>>>);

impl GradientHook for Noting {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        self.0.lock().unwrap().push(parameter.path.to_string());
        GradientFlow::Continue(gradient)
    }
}

#[test]
fn a_disturbed_block_sees_its_numbers_again_or_ends_the_step_on_the_cpu() {
    on_the_cpu(a_disturbed_block_sees_its_numbers_again_or_ends_the_step);
}

#[test]
fn a_loader_that_draws_for_a_while_does_not_end_a_training_on_the_cpu() {
    on_the_cpu(a_loader_that_draws_for_a_while_does_not_end_a_training);
}

#[test]
fn what_draws_nothing_is_not_disturbed_on_the_cpu() {
    on_the_cpu(what_draws_nothing_is_not_disturbed);
}

#[test]
fn disturbed_passes_of_exact_clipping_drop_the_same_elements_or_end_the_step_on_the_cpu() {
    on_the_cpu(disturbed_passes_of_exact_clipping_drop_the_same_elements_or_end_the_step);
}

#[test]
fn a_step_that_another_thread_disturbs_updates_once_on_the_cpu() {
    on_the_cpu(a_step_that_another_thread_disturbs_updates_once);
}
