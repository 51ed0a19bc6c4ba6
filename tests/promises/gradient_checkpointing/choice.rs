//! The choice of recomputed blocks, and of the place of their inputs, changes no weight.

use std::sync::{Arc, Mutex};

use super::*;

fn keeping(keep: &[bool]) -> GradientCheckpointingConfig {
    GradientCheckpointingConfig::new().with_keep_activations(keep.to_vec())
}

fn any_choice_of_blocks_trains_as_plain_ones(device: &Device) {
    let initial = Stack::without_chance(device);
    let copy = || copy(&initial, || Stack::without_chance(device));
    let xs = xs(device);
    let loss = |model: &Stack, step: usize| model.loss(xs[step].clone(), plain);
    let stock = train_stock(copy(), &mut AdamWConfig::new().init(), 5, RATE, loss);
    let choices = [
        keeping(&[true; 4]),
        keeping(&[true, false, true, false]),
        keeping(&[false, true]),
        keeping(&[true; 9]),
        GradientCheckpointingConfig::new().with_offload_inputs(true),
        keeping(&[false, true]).with_offload_inputs(true),
    ];
    let ways: [fn(&[Block], Tensor<2>) -> Tensor<2>; 2] = [each, nested];
    for (choice, way) in choices.iter().flat_map(|c| ways.map(|way| (c, way))) {
        let mut fused = FusedOptimizer::new_ok(copy(), AdamWConfig::new().init())
            .with_config_ok(FusedConfig::new().with_gradient_checkpointing(choice.clone()));
        train_fused(&mut fused, 5, RATE, |model, step| {
            model.loss(xs[step].clone(), way)
        });
        assert_eq!(fused.last_step().without_gradient, 0);
        assert_equal_weights(&stock.valid(), &fused.valid());
    }
}

/// Burn's own checkpointing, within the blocks and around them.
fn blocks_of_a_model_with_gradient_checkpointing_train_as_plain_ones(device: &Device) {
    let device = &device.clone().gradient_checkpointing();
    let initial = Stack::init(device);
    let xs = xs(device);
    let train = |way: fn(&[Block], Tensor<2>) -> Tensor<2>| {
        let model = copy(&initial, || Stack::init(device));
        let mut fused = FusedOptimizer::new_ok(model, AdamWConfig::new().init());
        train_fused(&mut fused, 3, RATE, |model, step| {
            model.loss(xs[step].clone(), way)
        });
        fused.valid()
    };
    let plain = train(plain);
    for way in [each, sequential, nested, first_and_last] {
        assert_equal_weights(&plain, &train(way));
    }
}

/// The embedding has no float input, the blocks have two and a mask.
fn inputs_of_several_kinds_wait_on_the_host(device: &Device) {
    let initial = Tokens::init(device);
    let tokens = Tensor::<2, Int>::from_data([[1, 5, 3, 10], [0, 2, 2, 7]], device);
    let train = |offload: bool| {
        let model = copy(&initial, || Tokens::init(device));
        let config = GradientCheckpointingConfig::new().with_offload_inputs(offload);
        let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
            .with_config_ok(FusedConfig::new().with_gradient_checkpointing(config));
        train_fused(&mut fused, 3, RATE, |model, _| {
            model.loss(tokens.clone(), true)
        });
        fused.model()
    };
    assert_equal_weights(&train(false), &train(true));
}

on_every_backend!(
    any_choice_of_blocks_trains_as_plain_ones,
    blocks_of_a_model_with_gradient_checkpointing_train_as_plain_ones,
    inputs_of_several_kinds_wait_on_the_host,
);

/// A block that runs once keeps its activations, one that runs twice does not.
#[test]
fn the_list_is_of_the_blocks_in_training_that_are_not_within_others() {
    let device = Device::flex().autodiff();
    let mut fused = FusedOptimizer::new_ok(Stack::init(&device), SgdConfig::new().init())
        .with_config_ok(FusedConfig::new().with_gradient_checkpointing(keeping(&[false, true])));
    let x = xs(&device).remove(0);
    let runs = Arc::new(Mutex::new(Vec::new()));
    type Runs = Constant<Arc<Mutex<Vec<(&'static str, bool)>>>>;
    let noting = |name: &'static str| {
        move |block: &Block, (x, Constant(runs)): (Tensor<2>, Runs)| {
            let recorded = block.expand.weight.val().is_tracked();
            runs.lock().unwrap().push((name, recorded));
            block.forward(x)
        }
    };
    let input = |x: Tensor<2>| (x, Constant(runs.clone()));
    // In two steps: a step counts from the start.
    for _ in 0..2 {
        runs.lock().unwrap().clear();
        fused.step_ok(RATE, |model| {
            let looked = model.valid();
            let look = input(x.clone().inner());
            gradient_checkpointing(&looked.blocks[0], look, noting("look"));
            let inner = noting("inner");
            let outer = move |block: &Block, input| gradient_checkpointing(block, input, inner);
            let x = gradient_checkpointing(&model.blocks[0], input(x.clone()), outer);
            let x = gradient_checkpointing(&model.blocks[1], input(x), noting("kept"));
            let x = gradient_checkpointing(&model.blocks[2], input(x), noting("beyond"));
            x.mean()
        });
        let mut runs = runs.lock().unwrap().clone();
        runs.sort_unstable();
        // A recorded run may come again, where tests beside this one draw random numbers.
        runs.dedup();
        let twice = |name| [(name, false), (name, true)];
        let once = [("kept", true), ("look", false)];
        assert_eq!(runs, [twice("beyond"), twice("inner"), once].concat());
    }
}
