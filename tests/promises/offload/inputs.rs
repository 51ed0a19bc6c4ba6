//! Inputs of blocks that wait on the host, and come back a block ahead, change no bit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Blocks alone, in blocks, and one whose output nobody uses.
#[derive(Clone, Copy, Debug)]
enum Way {
    Each,
    Nested,
    Unused,
}

fn loss(model: &Network, tokens: Tensor<2, Int>, way: Way) -> Tensor<1> {
    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
    let run = |block: &Block, x| block.forward(x);
    let each = |x, block: &Block| gradient_checkpointing(block, x, run);
    let x = match way {
        Way::Each => model.blocks.iter().fold(x, each),
        Way::Nested => gradient_checkpointing_sequential(&model.blocks, x, 2, |block, x| {
            gradient_checkpointing(block, x, |block: &Block, x| block.forward(x))
        }),
        Way::Unused => {
            let x = model.blocks[..2].iter().fold(x, each);
            drop(each(x.clone(), &model.blocks[2]));
            each(x, &model.blocks[3])
        }
    };
    x.powi_scalar(2).mean()
}

/// A config with inputs on the host, and what else `offload` leaves there.
fn with_inputs(device: &Device, offload: Offload) -> FusedConfig {
    FusedConfig::new()
        .with_gradient_checkpointing(GradientCheckpointingConfig::new().with_offload_inputs(true))
        .with_offload(Some(config(device, offload)))
}

fn inputs_that_come_a_block_ahead_change_no_bit(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    for way in [Way::Each, Way::Nested, Way::Unused] {
        let loss = |model: &Network, step: usize| loss(model, batches[step].clone(), way);
        let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
        train_fused(&mut plain, 4, RATE, loss);
        for mode in modes(device) {
            for limit in [None, Some(0), Some(200)] {
                let config = with_inputs(device, mode).with_max_bytes_in_flight(limit);
                let fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
                let mut fused = fused.with_config_on_ok(config, device);
                train_fused(&mut fused, 4, RATE, loss);
                assert_equal_weights(&plain.model(), &fused.model());
            }
        }
    }
}

on_every_backend!(inputs_that_come_a_block_ahead_change_no_bit);

/// In the first and in the second run of a block.
#[test]
fn a_panic_while_inputs_are_away_leaves_nothing_behind() {
    let device = Device::flex().autodiff();
    let initial = Network::init(&device);
    let batches = batches(&device);
    let good = |model: &Network, step: usize| loss(model, batches[step].clone(), Way::Each);
    let copy = || copy(&initial, || Network::init(&device));
    let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
    train_fused(&mut plain, 3, RATE, good);
    for fails_recorded in [false, true] {
        let config = with_inputs(&device, Offload::Weights(OffloadedBlocks::All));
        let mut fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
        fused = fused.with_config_on_ok(config, &device);
        train_fused(&mut fused, 1, RATE, good);
        let failing = |model: &Network| {
            let x: Tensor<2> = model.embedding.forward(batches[1].clone()).flatten(0, 1);
            // The statistics are as they were.
            let run = |block: &Block, x| block.contract.forward(block.expand.forward(x));
            let each = |x, block| gradient_checkpointing(block, x, run);
            let x = model.blocks.iter().fold(x, each);
            // The last block, so that the parameters of all others are those of before.
            let fails = move |block: &Block, x: Tensor<2>| {
                let is_recorded = block.expand.weight.val().is_tracked();
                assert!(is_recorded != fails_recorded, "in a block");
                run(block, x)
            };
            gradient_checkpointing(&model.blocks[3], x, fails).mean()
        };
        let step = AssertUnwindSafe(|| fused.step_ok(RATE, failing));
        assert!(catch_unwind(step).is_err());
        train_fused(&mut fused, 2, RATE, |model, step| good(model, step + 1));
        assert_equal_weights(&plain.model(), &fused.model());
    }
}

#[test]
fn two_threads_that_train_at_once_have_inputs_of_their_own() {
    let device = Device::flex().autodiff();
    let initial = Network::init(&device);
    let batches = batches(&device);
    let train = |config: Option<FusedConfig>| {
        let copy = copy(&initial, || Network::init(&device));
        let mut fused = FusedOptimizer::new_ok(copy, AdamConfig::new().init());
        if let Some(config) = config {
            fused = fused.with_config_on_ok(config, &device);
        }
        train_fused(&mut fused, 4, RATE, |model, step| {
            loss(model, batches[step].clone(), Way::Each)
        });
        fused.model()
    };
    let plain = train(None);
    std::thread::scope(|scope| {
        let both = [Offload::Updates, Offload::States].map(|offload| {
            let config = with_inputs(&device, offload);
            scope.spawn(|| train(Some(config)))
        });
        for thread in both {
            assert_equal_weights(&plain, &thread.join().unwrap());
        }
    });
}
