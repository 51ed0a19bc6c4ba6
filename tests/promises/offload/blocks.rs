//! Offloaded weights are not on the device, and are fetched when they are read.

use super::*;

/// Orders of the calls of blocks.
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
    /// A block whose output has no use.
    Unused,
    /// The embedding, also used outside of blocks, as the head of a chunked loss.
    LossInChunks,
}

fn loss(model: &Network, tokens: Tensor<2, Int>, way: Way, step: usize) -> Tensor<1> {
    let targets = tokens.clone().flatten(0, 1);
    let x: Tensor<2> = model.embedding.forward(tokens).flatten(0, 1);
    let one = |block: &Block, x| gradient_checkpointing(block, x, Block::forward);
    let blocks = model.blocks.iter();
    let x = match way {
        Way::Nested => gradient_checkpointing_sequential(&model.blocks, x, 2, one),
        Way::Shared => one(&model.blocks[0], blocks.fold(x, |x, block| one(block, x))),
        Way::TurnsAround if step % 2 == 1 => blocks.rev().fold(x, |x, block| one(block, x)),
        Way::TurnsAround => blocks.fold(x, |x, block| one(block, x)),
        Way::Outside => blocks.enumerate().fold(x, |x, (place, block)| match place {
            1 => block.forward(x),
            _ => one(block, x),
        }),
        Way::Sometimes => {
            let x = one(&model.blocks[0], x);
            let x = match step.is_multiple_of(3) {
                true => one(&model.blocks[1], x),
                false => x,
            };
            one(&model.blocks[3], one(&model.blocks[2], x))
        }
        Way::Unused => {
            let x = one(&model.blocks[1], one(&model.blocks[0], x));
            drop(one(&model.blocks[2], x.clone()));
            one(&model.blocks[3], x)
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

/// Returns a config with block inputs on the host, in addition to `offload`.
pub fn with_inputs(device: &Device, offload: Offload) -> FusedConfig {
    FusedConfig::new()
        .with_gradient_checkpointing(GradientCheckpointingConfig::new().with_offload_inputs(true))
        .with_offload(Some(config(device, offload)))
}

fn blocks_in_any_order_train_as_without_offload(device: &Device) {
    let initial = Network::init(device);
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
    let number = if is_exact(device) { 6 } else { 4 };
    let unlimited = ways[..number].iter().map(|way| (*way, None, false));
    let limits = [0, 3000, usize::MAX].map(|limit| (Way::TurnsAround, Some(limit), false));
    let inputs = [Way::Nested, Way::TurnsAround, Way::Unused].into_iter();
    let inputs = inputs.flat_map(|way| [None, Some(0), Some(200)].map(|limit| (way, limit, true)));
    for (way, limit, inputs) in unlimited.chain(limits).chain(inputs) {
        println!("{way:?}, at most {limit:?} bytes in flight, inputs offloaded: {inputs}");
        let fuse = |mode: Option<Offload>| {
            let config = mode.map(|mode| match inputs {
                true => with_inputs(device, mode),
                false => FusedConfig::offload(config(device, mode)),
            });
            let config = config.unwrap_or_default().with_max_bytes_in_flight(limit);
            adam(twin(&initial), device, None)
                .with_config_on(config, device)
                .unwrap()
        };
        assert_offload_changes_nothing(device, &modes(device), fuse, |fused| {
            train_fused(fused, 6, RATE, |model, step| {
                loss(model, batches[step].clone(), way, step)
            });
        });
    }
}

on_every_backend!(blocks_in_any_order_train_as_without_offload);
