//! The two passes of a step compute the same, or the step ends with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn two_pass_configs() -> [FusedConfig; 2] {
    let scaling = LossScalingConfig::new().with_initial_scale(64.0);
    [
        FusedConfig::exact(1e-3),
        FusedConfig::scaling(scaling.with_overflow(Overflow::SkipStep)),
    ]
}

fn fused(device: &Device, config: &FusedConfig) -> FusedOptimizer<Squashed> {
    FusedOptimizer::new(Squashed::init(device), AdamWConfig::new().init())
        .unwrap()
        .with_config(config.clone())
        .unwrap()
}

/// A number that a generator outside of Burn draws: another one in each run of a closure.
#[derive(Clone, Default)]
struct Draws(Arc<AtomicUsize>);

impl Draws {
    fn next(&self) -> f32 {
        1.0 + 0.1 * self.0.fetch_add(1, Ordering::Relaxed) as f32
    }
}

fn assert_refused<R>(result: Result<R, FusedError>) -> String {
    match result.map(drop) {
        Err(error @ FusedError::RandomNumbers { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn loss_that_differs_between_passes_updates_nothing(device: &Device) {
    let x = &batches(device, 1)[0];
    for config in two_pass_configs() {
        let mut fused = fused(device, &config);
        // From the second step on, the model is known to draw nothing.
        for steps in 0..3 {
            let (before, draws) = (fused.model(), Draws::default());
            let draws_anew = |model: &Squashed| model.loss(x) * draws.next();
            let message = assert_refused(fused.step_repeatable(LEARNING_RATE, draws_anew));
            assert_says(&message, "No parameter was updated");
            assert_says(&message, "its own generator");
            assert_equal_weights(&before, &fused.model());
            fused
                .step_repeatable(LEARNING_RATE, |model| model.loss(x))
                .unwrap();
            assert_eq!(fused.last_step().updated, 4, "after {steps} steps");
        }
    }
}

fn gradient_that_differs_between_passes_ends_step(device: &Device) {
    let x = &batches(device, 1)[0];
    for config in two_pass_configs() {
        let mut fused = fused(device, &config);
        for _ in 0..3 {
            let (before, draws) = (fused.model(), Draws::default());
            // The loss is zero in each pass.
            let draws_anew = |model: &Squashed| {
                let loss = model.loss(x) * draws.next();
                loss.clone() - loss.detach()
            };
            assert_refused(fused.step_repeatable(LEARNING_RATE, draws_anew));
            assert_equal_weights(&before, &fused.model());
            fused
                .step_repeatable(LEARNING_RATE, |model| model.loss(x))
                .unwrap();
        }
    }
}

fn own_backward_pass_that_differs_ends_step(device: &Device) {
    let x = &batches(device, 1)[0];
    let own = |model: &Squashed, loss: Tensor<1>| {
        let gradients = loss.backward();
        ((), GradientsParams::from_grads(gradients, model))
    };
    let mut fused = fused(device, &FusedConfig::exact(1e-3));
    for _ in 0..3 {
        let (before, draws) = (fused.model(), Draws::default());
        assert_refused(fused.step_with_backward(LEARNING_RATE, |model| {
            own(model, model.loss(x) * draws.next())
        }));
        assert_equal_weights(&before, &fused.model());
        // The second pass leaves out a layer.
        let is_first = AtomicUsize::new(1);
        let message = assert_refused(fused.step_with_backward(LEARNING_RATE, |model| {
            let all = model
                .output
                .forward(Tensor::<2>::ones([1, 8], device))
                .sum();
            own(
                model,
                match is_first.swap(0, Ordering::Relaxed) {
                    1 => all + model.input.forward(x.clone()).sum(),
                    _ => all,
                },
            )
        }));
        assert_says(&message, "all others were");
        fused
            .step_with_backward(LEARNING_RATE, |model| own(model, model.loss(x)))
            .unwrap();
    }
}

fn replica_whose_loss_differs_between_passes_updates_nothing(device: &Device) {
    let devices = [device.clone(), device.clone()];
    let model = Squashed::init(device);
    let mut fused = FusedReplicas::new(model, AdamWConfig::new().init(), devices)
        .unwrap()
        .with_config(FusedConfig::exact(1e-3))
        .unwrap();
    for drawing in [0, 1] {
        let batches = batches(device, 2).into_iter().enumerate();
        let batches: Vec<_> = batches.collect();
        let (before, draws) = (fused.model(), Draws::default());
        let step =
            fused.step_repeatable(LEARNING_RATE, batches.clone(), move |model, (rank, x)| {
                let factor = if rank == drawing { draws.next() } else { 1.0 };
                model.loss(&x) * factor
            });
        assert_says(&assert_refused(step), "No parameter was updated");
        assert_equal_weights(&before, &fused.model());
        let step = fused.step_repeatable(LEARNING_RATE, batches, |model, (_, x)| model.loss(&x));
        step.unwrap();
    }
}

on_every_cpu_backend!(
    loss_that_differs_between_passes_updates_nothing,
    gradient_that_differs_between_passes_ends_step,
    own_backward_pass_that_differs_ends_step,
    replica_whose_loss_differs_between_passes_updates_nothing,
);

/// `flex` adds the parts of a long sum in the order in which its threads end.
#[test]
fn sum_in_another_order_is_no_difference() {
    let weights =
        [1.0, 0.5].map(|value| Param::from_tensor(Tensor::<1>::from_floats([value], &flex())));
    let mut fused = FusedOptimizer::new(weights.to_vec(), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::exact(1e-6))
        .unwrap();
    let noise = Distribution::Uniform(0.5, 1.5);
    let x = Tensor::<1>::random([(1 << 22) + 12_345], noise, &flex());
    for _ in 0..10 {
        fused
            .step_repeatable(1e-3, |weights| {
                let sum = |weight: &Param<Tensor<1>>| (x.clone() * weight.val()).sum();
                // Gradients depend on sums, and the last one is nothing but rounding.
                let [first, last] = [sum(&weights[0]), sum(&weights[1])];
                first.clone() * first.clone() + (x.clone().sum() - x.clone().sum()) * last
            })
            .unwrap();
    }
}

/// It may hold as much as all logits.
#[test]
fn output_of_first_pass_is_dropped_before_second() {
    let device = flex();
    let x = &batches(&device, 1)[0];
    for config in two_pass_configs() {
        let mut fused = fused(&device, &config);
        let output = Arc::new(());
        let step = fused.step_repeatable(LEARNING_RATE, |model| {
            assert_eq!(Arc::strong_count(&output), 1);
            (model.loss(x), output.clone())
        });
        step.unwrap();
    }
}
