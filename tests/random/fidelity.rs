//! Fused training that draws random numbers equals stock Burn.

use std::sync::{Arc, Mutex};

use burn::nn::transformer::TransformerEncoderInput;

use crate::common::*;
use crate::{ALONE, Dropping, Last, Model, dropping, keep};

fn dropout_draws_numbers_of_stock(device: &Device) {
    let _alone = ALONE.lock();
    let initial = Model::init(device);
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    let loss = |model: &Model, _: usize| model.loss(x.clone());
    let adamw = || AdamWConfig::new().init();
    let stock = copy(&initial, || Model::init(device));
    device.seed(7);
    let stock = train_stock(stock, &mut adamw(), 5, 1e-2, loss);

    // The closure of the second config runs once. Buffered gradients are applied without random numbers.
    let in_buffer = FusedConfig::clipping(GlobalNormClippingConfig::ExactInBuffer(1e9));
    let [mut fused, _] = [FusedConfig::new(), in_buffer].map(|config| {
        let model = copy(&initial, || Model::init(device));
        device.seed(7);
        let mut fused = FusedOptimizer::new(model, adamw())
            .unwrap()
            .with_config(config)
            .unwrap();
        train_fused(&mut fused, 5, 1e-2, loss);
        assert_equal_weights(&stock, &fused.model());
        fused
    });
    assert_changed(&initial, &fused.model(), |_| true);

    let record = fused.to_record();
    device.seed(8);
    train_fused(&mut fused, 1, 1e-2, loss);
    let after_one_seed = fused.model();
    let mut again = FusedOptimizer::new(stock, adamw()).unwrap();
    again.load_record(record).unwrap();
    device.seed(9);
    train_fused(&mut again, 1, 1e-2, loss);
    let differ = weights(&after_one_seed) != weights(&again.model());
    assert!(differ, "another seed gives other numbers");
}

/// A plain step of SGD moves the weights by the clipped gradients: their norm is the maximum only if
/// both passes drop the same elements.
fn passes_of_exact_clipping_drop_same_elements(device: &Device) {
    let _alone = ALONE.lock();
    let before = Model::init(device);
    let max_norm = 1e-3;
    let mut fused = FusedOptimizer::new(before.clone(), SgdConfig::new().init())
        .unwrap()
        .with_config(FusedConfig::exact(max_norm))
        .unwrap();
    let x = Tensor::random([4, 5, 3], Distribution::Default, device);
    fused
        .step_repeatable(1.0, |model| model.loss(x.clone()))
        .unwrap();
    let report = fused.last_step();
    assert!(report.gradient_norm.unwrap() > max_norm, "nothing to clip");

    let moved = distance(&before, &fused.model()) / max_norm;
    assert!((moved - 1.0).abs() < 1e-3, "{moved} of the maximum");
}

/// The numbers that a block draws in its runs, and those drawn after the block and after the step.
fn drawn(device: &Device, numbers: usize) -> (Vec<Vec<f32>>, [Vec<f32>; 2]) {
    let model = LinearConfig::new(3, 3).init(device);
    let mut fused = FusedOptimizer::new(model, SgdConfig::new().init()).unwrap();
    let found = Arc::new(Mutex::new(Vec::new()));
    let rest = || {
        let rest = Tensor::<1>::random([4], Distribution::Default, &device.clone().inner());
        rest.into_data().iter().collect::<Vec<f32>>()
    };
    device.seed(7);
    let (_, after_block) = fused
        .step(0.1, |model| {
            let x = Tensor::<2>::ones([2, 3], device);
            type Noting = Constant<Arc<Mutex<Vec<Vec<f32>>>>>;
            let inner = move |model: &Linear, (x, Constant(noting)): (Tensor<2>, Noting)| {
                let noise =
                    Tensor::<2>::random([2, numbers], Distribution::Default, &x.device().inner());
                let noise: Vec<f32> = noise.into_data().iter().collect();
                noting.lock().unwrap().push(noise);
                model.forward(x)
            };
            let outer = move |model: &Linear, (x, noting): (Tensor<2>, Noting)| {
                let x = gradient_checkpointing(model, (x, noting.clone()), inner);
                inner(model, (x, noting))
            };
            let x = gradient_checkpointing(model, (x, Constant(found.clone())), outer);
            (x.mean(), rest())
        })
        .unwrap();
    let found = found.lock().unwrap().clone();
    (found, [after_block, rest()])
}

fn second_run_of_block_sees_numbers_of_first(device: &Device) {
    let _alone = ALONE.lock();
    let (found, after) = drawn(device, 3);
    // Both blocks run; then both again, the inner one without recording; then the inner one with recording.
    let [inner, outer, inner_2, outer_2, inner_3] = &found[..] else {
        panic!("{} runs", found.len())
    };
    assert_eq!((inner, outer), (inner_2, outer_2));
    assert_eq!(inner, inner_3);
    assert_ne!(inner, outer);
    // Later numbers do not depend on how many numbers a block draws.
    assert_eq!(drawn(device, 100).1, after);
    assert_ne!(after[0], after[1]);
}

/// Two blocks with dropout, one with another in it, and dropout between them.
fn dropout_in_recomputed_blocks_trains_same(device: &Device) {
    let _alone = ALONE.lock();
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
        let config = FusedConfig::new()
            .with_gradient_checkpointing(config)
            .with_clipping(clipping);
        let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
            .unwrap()
            .with_config(config)
            .unwrap();
        device.seed(7);
        for _ in 0..4 {
            fused.step_repeatable(1e-2, loss).unwrap();
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

/// A model whose fields are used from the last to the first.
#[derive(Module, Debug)]
struct Backwards {
    last: Linear,
    first: Linear,
}

/// The line that the README shows.
fn model_drawn_in_order_starts_as_stock(device: &Device) {
    let _alone = ALONE.lock();
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
        let mut fused = FusedOptimizer::new(start(), SgdConfig::new().init()).unwrap();
        train_fused(&mut fused, 2, 1e-2, loss);
        (stock, fused.model())
    };
    let (stock, fused) = train(true);
    assert_equal_weights(&stock, &fused);
    let (stock, fused) = train(false);
    assert!(weights(&stock) != weights(&fused), "they draw elsewhere");
}

fn block_that_begins_to_draw_repeats_its_mask(device: &Device) {
    let _alone = ALONE.lock();
    let seen = Last::default();
    let mut fused = FusedOptimizer::new(dropping(device), SgdConfig::new().init())
        .unwrap()
        .with_hook(ParamGroup::all(), keep(&seen));
    let quiet = |(weight, _): &Dropping, x: Tensor<1>| weight.val() * x;
    let draws = |(weight, dropout): &Dropping, x: Tensor<1>| dropout.forward(weight.val() * x);
    for is_drawn in [false, false, true, true] {
        let step = |model: &Dropping| {
            let x = Tensor::ones([64], device);
            let y = match is_drawn {
                true => gradient_checkpointing(model, x, draws),
                false => gradient_checkpointing(model, x, quiet),
            };
            (y.clone().sum(), y.detach())
        };
        let (_, y) = fused.step(0.0, step).unwrap();
        let y: Vec<f32> = y.into_data().iter().collect();
        // The gradient of the weight, which is 1, is the mask of the second run.
        assert_eq!(*seen.lock().unwrap(), y, "another mask");
        assert_eq!(y.contains(&0.0), is_drawn);
    }
}

/// The layer for inference shares its weights with one whose gradient has been applied.
#[test]
fn nested_block_for_inference_draws_same_numbers_twice() {
    let _alone = ALONE.lock();
    let device = &flex();
    let model: Vec<Linear> = linears(2, 4, device);
    let x = Tensor::random([5, 4], Distribution::Default, device);
    let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).unwrap();
    type Pair = (Linear, Linear);
    fn forward((layer, teacher): &Pair, x: Tensor<2>) -> Tensor<2> {
        let y = layer.forward(x).tanh();
        let taught = gradient_checkpointing(teacher, y.clone(), |teacher: &Linear, y| {
            DropoutConfig::new(0.5).init().forward(teacher.forward(y))
        });
        layer.forward(y * taught)
    }
    for _ in 0..2 {
        let stepped = fused.step_with_backward(1e-2, |model| {
            let pair = (model[0].clone(), model[1].valid());
            let y = gradient_checkpointing(&pair, x.clone(), forward);
            let loss = model[1].forward(y).square().mean();
            ((), GradientsParams::from_grads(loss.backward(), model))
        });
        stepped.unwrap();
    }
}

/// The lock is released at the first gradient and at the end of the step.
fn numbers_after_each_release_of_lock_are_new(device: &Device) {
    let _alone = ALONE.lock();
    let (x, probe) = (Tensor::<1>::ones([64], device), dropping(device));
    let draw = || Tensor::<1>::random([64], Distribution::Default, device).into_data();
    let optimizer = SgdConfig::new().init();
    let mut fused = FusedOptimizer::new(dropping(device), optimizer).unwrap();
    let mut drawn = Vec::new();
    for _ in 0..2 {
        let step = fused.step_with_backward(0.0, |model| {
            let quiet = |model: &Dropping, x| model.0.val() * x;
            let loss = gradient_checkpointing(model, x.clone(), quiet).sum();
            let gradients = GradientsParams::from_grads(loss.backward(), model);
            drawn.push(draw());
            let drops = |(weight, dropout): &Dropping, x| dropout.forward(weight.val() * x);
            drop(gradient_checkpointing(&probe, x.clone(), drops));
            ((), gradients)
        });
        step.unwrap();
        drawn.push(draw());
    }
    for (index, numbers) in drawn.iter().enumerate() {
        assert!(!drawn[..index].contains(numbers), "{index}");
    }
}

on_every_backend!(
    numbers_after_each_release_of_lock_are_new,
    block_that_begins_to_draw_repeats_its_mask,
    dropout_draws_numbers_of_stock,
    passes_of_exact_clipping_drop_same_elements,
    second_run_of_block_sees_numbers_of_first,
    dropout_in_recomputed_blocks_trains_same,
    model_drawn_in_order_starts_as_stock,
);
