//! Fused training equals stock Burn where random numbers are drawn.
//!
//! A process of its own, one test at a time: the random stream of a backend is shared by all threads.

#[path = "promises/compare.rs"]
mod compare;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backburn::{
    FusedError, FusedOptimizer, GlobalNormClippingConfig, GradientCheckpointingConfig,
    GradientFlow, GradientHook, HookedParameter, gradient_checkpointing,
};
use burn::module::{Module, Param, ParamGroup};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};

use compare::{assert_changed, assert_equal_weights, copy, train_fused, train_stock};

#[derive(Module, Debug)]
struct Model {
    input: Linear,
    dropout: Dropout,
    encoder: TransformerEncoder,
    output: Linear,
}

impl Model {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 8).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            encoder: TransformerEncoderConfig::new(8, 16, 2, 2).init(device),
            output: LinearConfig::new(8, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<3>) -> Tensor<1> {
        let x = self.dropout.forward(self.input.forward(x));
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        self.output.forward(x).powi_scalar(2).mean()
    }
}

fn dropout_draws_the_numbers_of_stock(device: &Device) {
    let initial = Model::init(device);
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let loss = |model: &Model, _: usize| model.loss(x.clone());

    let stock = copy(&initial, || Model::init(device));
    device.seed(7);
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), 5, 1e-2, loss);

    let fused = copy(&initial, || Model::init(device));
    device.seed(7);
    let mut fused = FusedOptimizer::new(fused, AdamWConfig::new().init());
    train_fused(&mut fused, 5, 1e-2, loss);
    assert_equal_weights(&stock, &fused.model());
    assert_changed(&initial, &fused.model(), |_| true);

    device.seed(8);
    train_fused(&mut fused, 1, 1e-2, loss);
    let after_one_seed = fused.model();
    let mut again = FusedOptimizer::new(stock, AdamWConfig::new().init());
    device.seed(9);
    train_fused(&mut again, 1, 1e-2, loss);
    let differ = compare::weights(&after_one_seed) != compare::weights(&again.model());
    assert!(differ, "another seed gives other numbers");
}

/// A plain step of SGD moves the weights by the clipped gradients: their norm is the maximum only if
/// both passes drop the same elements.
fn both_passes_of_exact_clipping_drop_the_same_elements(device: &Device) {
    let before = Model::init(device);
    let max_norm = 1e-3;
    let mut fused = FusedOptimizer::new(before.clone(), SgdConfig::new().init())
        .with_clipping(GlobalNormClippingConfig::Exact(max_norm));
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    fused.step_repeatable(1.0, |model| model.loss(x.clone()));
    let report = fused.last_step();
    assert!(report.gradient_norm.unwrap() > max_norm, "nothing to clip");

    let moved = distance(&before, &fused.model()) / max_norm;
    assert!(
        (moved - 1.0).abs() < 1e-3,
        "moved by {moved} of the maximum"
    );
}

/// The global norm of the difference of two models.
fn distance(before: &Model, after: &Model) -> f64 {
    let pairs = compare::weights(before)
        .into_iter()
        .zip(compare::weights(after));
    let squares = pairs.map(|((_, before), (_, after))| {
        let pairs = before.iter::<f64>().zip(after.iter::<f64>());
        pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>()
    });
    squares.sum::<f64>().sqrt()
}

/// What a block draws in its runs, and what is drawn after the block and after the step.
fn drawn(device: &Device, numbers: usize) -> (Vec<Vec<f32>>, [Vec<f32>; 2]) {
    let model = LinearConfig::new(3, 3).init(device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    let found = Arc::new(Mutex::new(Vec::new()));
    let rest = || {
        let rest = Tensor::<1>::random([4], Distribution::Default, &device.clone().inner());
        rest.into_data().iter().collect::<Vec<f32>>()
    };
    device.seed(7);
    let (_, after_block) = fused.step(0.1, |model| {
        let x = Tensor::<2>::ones([2, 3], device);
        let noting = found.clone();
        let inner = move |model: &Linear, x: Tensor<2>| {
            let noise =
                Tensor::<2>::random([2, numbers], Distribution::Default, &x.device().inner());
            let noise: Vec<f32> = noise.into_data().iter().collect();
            noting.lock().unwrap().push(noise);
            model.forward(x)
        };
        let outer = inner.clone();
        let x = gradient_checkpointing(model, x, move |model: &Linear, x| {
            outer(model, gradient_checkpointing(model, x, inner.clone()))
        });
        (x.mean(), rest())
    });
    let found = found.lock().unwrap().clone();
    (found, [after_block, rest()])
}

fn the_second_run_of_a_block_sees_the_numbers_of_the_first(device: &Device) {
    let (found, after) = drawn(device, 3);
    // Both blocks; then both again, the inner one without recording; then the inner one for good.
    let [inner, outer, inner_2, outer_2, inner_3] = &found[..] else {
        panic!("{} runs", found.len())
    };
    assert_eq!((inner, outer), (inner_2, outer_2));
    assert_eq!(inner, inner_3);
    assert_ne!(inner, outer);
    // The rest does not depend on how many numbers a block draws.
    assert_eq!(drawn(device, 100).1, after);
    assert_ne!(after[0], after[1]);
}

/// Plain descent along the gradient of a function with dropout: were other elements dropped in the second
/// run, the gradient would not be that of the loss.
fn the_gradient_of_a_block_with_dropout_is_that_of_its_loss(device: &Device) {
    let initial = Model::init(device);
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let recomputed = |model: &Model| {
        let x = x.clone();
        gradient_checkpointing(model, x, |model: &Model, x| model.loss(x))
    };
    let loss_after = |rate: f64| {
        let mut fused = FusedOptimizer::new(initial.clone(), SgdConfig::new().init());
        device.seed(7);
        let before = fused.step(rate, recomputed).into_scalar::<f64>();
        device.seed(7);
        let after = fused.step(0.0, recomputed).into_scalar::<f64>();
        (before, after)
    };
    let (before, same) = loss_after(0.0);
    assert_eq!(before, same, "the same seed gives the same loss");
    // To first order, a step changes the loss by the rate times the squared norm of the gradient.
    let mut measuring = FusedOptimizer::new(initial.clone(), SgdConfig::new().init())
        .with_clipping(GlobalNormClippingConfig::Lagged(1e9));
    device.seed(7);
    measuring.step(0.0, recomputed);
    let norm = measuring.last_step().gradient_norm.unwrap();
    let rate = 1e-3;
    let (before, after) = loss_after(rate);
    let expected = rate * norm * norm;
    let moved = before - after;
    assert!(
        (moved / expected - 1.0).abs() < 0.1,
        "{moved}, {expected} expected"
    );
}

/// Two blocks with dropout, one with another in it, and dropout between them.
fn a_model_with_dropout_trains_the_same_whichever_blocks_are_recomputed(device: &Device) {
    let initial = Model::init(device);
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let encode = |model: &Model, x| model.encoder.forward(TransformerEncoderInput::new(x));
    let loss = |model: &Model| {
        let hidden = gradient_checkpointing(model, x.clone(), |model: &Model, x| {
            model.dropout.forward(model.input.forward(x))
        });
        let hidden = model.dropout.forward(hidden);
        let hidden = gradient_checkpointing(model, hidden, move |model: &Model, x| {
            let x = gradient_checkpointing(model, model.dropout.forward(x), encode);
            model.dropout.forward(x)
        });
        model.output.forward(hidden).powi_scalar(2).mean()
    };
    let train = |keep: [bool; 2], clipping: Option<GlobalNormClippingConfig>| {
        let config = GradientCheckpointingConfig::new().with_keep_activations(keep.to_vec());
        let model = copy(&initial, || Model::init(device));
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
            .with_gradient_checkpointing(config);
        if let Some(clipping) = clipping {
            fused = fused.with_clipping(clipping);
        }
        device.seed(7);
        for _ in 0..4 {
            fused.step_repeatable(1e-2, loss);
        }
        let rest = Tensor::<1>::random([4], Distribution::Default, &device.clone().inner());
        (fused.model(), rest.into_data())
    };
    for clipping in [None, Some(GlobalNormClippingConfig::Exact(1e-2))] {
        let (kept, rest) = train([true, true], clipping);
        assert_changed(&initial, &kept, |_| true);
        for keep in [[false, false], [false, true], [true, false]] {
            let (recomputed, rest_of_it) = train(keep, clipping);
            assert_equal_weights(&kept, &recomputed);
            assert_eq!(rest, rest_of_it);
        }
    }
}

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
    let seen = Gradient::default();
    let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
        .with_hook(ParamGroup::all(), seen.clone());
    let (mut right, mut refused) = (0, 0);
    for pause in [0, 1, 20, 1000] {
        disturbed(device, Duration::from_micros(pause), || {
            for _ in 0..25 {
                let dropout = dropout.clone();
                let drop = move |weight: &Param<Tensor<1>>, x: Tensor<1>| {
                    // So long that other threads come in between.
                    let noise = Tensor::<1>::random([50_000], Distribution::Default, &x.device());
                    dropout.forward(weight.val() * x) + noise.mean().detach() * 0.0
                };
                let step = fused.try_step(0.0, |weight| {
                    let x = Tensor::ones([64], device);
                    let dropped = gradient_checkpointing(weight, x, drop.clone());
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
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
            .with_clipping(GlobalNormClippingConfig::Exact(1e-2));
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
                .with_clipping(GlobalNormClippingConfig::Exact(max_norm));
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
        .with_clipping(GlobalNormClippingConfig::Exact(1e-3))
        .with_hook(ParamGroup::all(), Noting(updates.clone()));
    let x = Tensor::<2>::random([4, 8], Distribution::Default, device);
    let inner = device.clone().inner();
    let result = fused.try_step_repeatable(1e-2, |model| {
        let (dropout, device) = (DropoutConfig::new(0.5).init(), inner.clone());
        let drop = move |linear: &Linear, x: Tensor<2>| {
            if linear.weight.val().is_tracked() {
                // As another thread would.
                Tensor::<1>::random([3], Distribution::Default, &device);
            }
            dropout.forward(linear.forward(x))
        };
        let x = gradient_checkpointing(&model[0], x.clone(), drop);
        model[1..]
            .iter()
            .fold(x, |x, linear| linear.forward(x).tanh())
            .mean()
    });
    assert!(matches!(result, Err(FusedError::RandomNumbers { .. })));
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

/// Used from the last field to the first.
#[derive(Module, Debug)]
struct Backwards {
    last: Linear,
    first: Linear,
}

/// The line that the README shows.
fn drawn_in_module_order_both_start_alike(device: &Device) {
    let x = Tensor::<2>::random([3, 4], Distribution::Default, device);
    let loss = |model: &Backwards, _: usize| {
        let x = model.last.forward(model.first.forward(x.clone()));
        x.powi_scalar(2).mean()
    };
    let train = |draw: bool| {
        let start = || {
            device.seed(42);
            let model = Backwards {
                last: LinearConfig::new(4, 2).init(device),
                first: LinearConfig::new(4, 4).init(device),
            };
            if draw {
                drop(model.valid());
            }
            model
        };
        let mut optimizer = SgdConfig::new().init();
        let stock = train_stock(start(), &mut optimizer, 2, 1e-2, loss);
        let mut fused = FusedOptimizer::new(start(), SgdConfig::new().init());
        train_fused(&mut fused, 2, 1e-2, loss);
        (stock, fused.model())
    };
    let (stock, fused) = train(true);
    assert_equal_weights(&stock, &fused);
    let (stock, fused) = train(false);
    assert!(
        compare::weights(&stock) != compare::weights(&fused),
        "they draw elsewhere"
    );
}

static ALONE: Mutex<()> = Mutex::new(());

#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn on_the_cpu(test: impl Fn(&Device)) {
    let _alone = ALONE.lock();
    test(&Device::flex().autodiff());
    test(&Device::ndarray().autodiff());
}

fn on_every_backend(test: impl Fn(&Device)) {
    on_the_cpu(&test);
    #[cfg(feature = "wgpu")]
    let _alone = ALONE.lock();
    #[cfg(feature = "wgpu")]
    test(&Device::wgpu(Default::default()).autodiff());
}

#[test]
fn dropout_draws_the_numbers_of_stock_on_every_backend() {
    on_every_backend(dropout_draws_the_numbers_of_stock);
}

#[test]
fn both_passes_of_exact_clipping_drop_the_same_elements_on_every_backend() {
    on_every_backend(both_passes_of_exact_clipping_drop_the_same_elements);
}

#[test]
fn the_second_run_of_a_block_sees_the_numbers_of_the_first_on_every_backend() {
    on_every_backend(the_second_run_of_a_block_sees_the_numbers_of_the_first);
}

#[test]
fn the_gradient_of_a_block_with_dropout_is_that_of_its_loss_on_every_backend() {
    on_every_backend(the_gradient_of_a_block_with_dropout_is_that_of_its_loss);
}

#[test]
fn a_model_with_dropout_trains_the_same_whichever_blocks_are_recomputed_on_every_backend() {
    on_every_backend(a_model_with_dropout_trains_the_same_whichever_blocks_are_recomputed);
}

#[test]
fn a_disturbed_block_sees_its_numbers_again_or_ends_the_step_on_the_cpu() {
    on_the_cpu(a_disturbed_block_sees_its_numbers_again_or_ends_the_step);
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
fn drawn_in_module_order_both_start_alike_on_every_backend() {
    on_every_backend(drawn_in_module_order_both_start_alike);
}

#[test]
fn a_step_that_another_thread_disturbs_updates_once_on_the_cpu() {
    on_the_cpu(a_step_that_another_thread_disturbs_updates_once);
}
