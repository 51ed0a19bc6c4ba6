//! Offloaded weights are not on the device, and are fetched when they are read.

use super::*;

/// Calls the blocks in other orders than one after the other.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Blocks in blocks.
    Nested,
    /// The first block once more at the end, so that its weights are shared by two blocks.
    Shared,
    /// In the opposite order in every other step.
    TurnsAround,
    /// The second block outside of gradient checkpointing, which reads its weights there.
    Outside,
    /// A block that only some steps have.
    Sometimes,
    /// The embedding, which is outside of blocks, too, as the head of a loss in chunks.
    LossInChunks,
}

fn loss(model: &Network, tokens: Tensor<2, Int>, way: Way, step: usize) -> Tensor<1> {
    let targets = tokens.clone().flatten(0, 1);
    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
    let one =
        |block: &Block, x| gradient_checkpointing(block, x, |block: &Block, x| block.forward(x));
    let blocks = model.blocks.iter();
    let x = match way {
        Way::Nested => gradient_checkpointing_sequential(&model.blocks, x, 2, |block, x| {
            gradient_checkpointing(block, x, |block: &Block, x| block.forward(x))
        }),
        Way::Shared => one(&model.blocks[0], blocks.fold(x, |x, block| one(block, x))),
        Way::TurnsAround if step % 2 == 1 => blocks.rev().fold(x, |x, block| one(block, x)),
        Way::TurnsAround => blocks.fold(x, |x, block| one(block, x)),
        Way::Outside => blocks.enumerate().fold(x, |x, (place, block)| match place {
            1 => block.forward(x),
            _ => one(block, x),
        }),
        Way::Sometimes => {
            let x = one(&model.blocks[0], x);
            let x = if step.is_multiple_of(3) {
                one(&model.blocks[1], x)
            } else {
                x
            };
            one(&model.blocks[3], one(&model.blocks[2], x))
        }
        Way::LossInChunks => {
            let loss = LinearCrossEntropyLossConfig::new()
                .with_chunk_size(4)
                .init();
            let x = blocks.fold(x, |x, block| one(block, x));
            return loss.forward(&model.embedding, x, targets);
        }
    };
    x.powi_scalar(2).mean()
}

fn blocks_of_any_order_train_as_without(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    let ways = [
        Way::Nested,
        Way::Shared,
        Way::TurnsAround,
        Way::LossInChunks,
        Way::Outside,
        Way::Sometimes,
    ];
    // Each kernel is compiled when it is first used.
    let ways = if is_exact(device) {
        &ways[..]
    } else {
        &ways[..4]
    };
    for &way in ways {
        let loss = |model: &Network, step: usize| loss(model, batches[step].clone(), way, step);
        let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
        train_fused(&mut plain, 6, RATE, loss);
        for mode in modes(device) {
            let mut fused = offloaded(copy(), AdamConfig::new().init(), device, mode);
            train_fused(&mut fused, 6, RATE, loss);
            assert_equal_weights(&plain.model(), &fused.model());
        }
    }
}

fn any_number_of_bytes_may_be_under_way(device: &Device) {
    let initial = Network::init(device);
    let copy = || copy(&initial, || Network::init(device));
    let batches = batches(device);
    let loss = |model: &Network, step: usize| {
        let tokens = batches[step].clone();
        loss(model, tokens, Way::TurnsAround, step)
    };
    let mut plain = FusedOptimizer::new_ok(copy(), AdamConfig::new().init());
    train_fused(&mut plain, 4, RATE, loss);
    for limit in [0, 3000, usize::MAX] {
        for mode in modes(device) {
            let config =
                FusedConfig::offload(config(device, mode)).with_max_bytes_in_flight(Some(limit));
            let mut fused = FusedOptimizer::new_ok(copy(), AdamConfig::new().init())
                .with_config_on_ok(config, device);
            train_fused(&mut fused, 4, RATE, loss);
            assert_equal_weights(&plain.model(), &fused.model());
        }
    }
}

on_every_backend!(
    blocks_of_any_order_train_as_without,
    any_number_of_bytes_may_be_under_way,
);
