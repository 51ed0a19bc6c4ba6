//! The nodes that checkpointed blocks leave in Burn's graph.

use burn::nn::{Lstm, LstmConfig};

use crate::{BYTES, alone, device, peak};

use crate::common::*;

const LAYERS: usize = 2;

fn recurrent() -> Vec<Lstm> {
    (0..LAYERS)
        .map(|_| LstmConfig::new(16, 16, true).init(&device()))
        .collect()
}

fn loss(layers: &[Lstm], x: Tensor<3>, in_blocks: bool) -> Tensor<1> {
    let run = |layer: &Lstm, x: Tensor<3>| layer.forward(x, None).0;
    let forward = |x, layer| block_if(in_blocks, layer, x, run);
    layers.iter().fold(x, forward).powi_scalar(2).mean()
}

/// A step of a recurrent network has thousands of operations. Burn's autodiff creates nodes for all of them, recorded
/// or not.
#[test]
fn recurrent_layer_in_block_takes_less_than_stock() {
    alone!();
    let x = Tensor::<3>::random([4, 200, 16], Distribution::Default, &device());
    let stock = {
        let mut optimizer = AdamConfig::new().init();
        let mut step = |model: Vec<Lstm>| {
            train_stock(model, &mut optimizer, 1, 1e-3, |model: &Vec<Lstm>, _| {
                loss(model, x.clone(), false)
            })
        };
        let model = step(recurrent());
        peak(|| drop(step(model)))
    };
    let mut fused = FusedOptimizer::new(recurrent(), AdamConfig::new().init()).unwrap();
    let mut first_runs = 0;
    let mut step = || {
        let before = BYTES.current_usage();
        fused
            .step(1e-3, |model| {
                let loss = loss(model, x.clone(), true);
                first_runs = BYTES.current_usage() - before;
                loss
            })
            .unwrap();
    };
    step();
    let blocks = peak(step);
    let [blocks, first_runs] = [blocks, first_runs].map(|it| it as f64 / stock as f64);
    assert!(blocks < 0.7, "{blocks} of the bytes of stock");
    assert!(first_runs < 0.1, "{first_runs} are left of the first runs");
}

#[test]
fn tiled_block_holds_activations_of_one_tile() {
    alone!();
    const TOKENS: usize = 1024;
    const WIDE: usize = 1024;
    let least = |tile: usize| {
        let linear = |from, to| LinearConfig::new(from, to).init(&device());
        let mlp: (Linear, Linear) = (linear(8, WIDE), linear(WIDE, 8));
        let mut fused = FusedOptimizer::new(mlp, SgdConfig::new().init()).unwrap();
        let x = Tensor::<3>::ones([1, TOKENS, 8], &device());
        let run =
            |(expand, contract): &(Linear, Linear), x| contract.forward(expand.forward(x).tanh());
        let mut step = || {
            fused
                .step(0.1, |mlp| {
                    gradient_checkpointing_tiled(mlp, x.clone(), 1, tile, run).mean()
                })
                .unwrap();
        };
        (0..4).map(|_| peak(&mut step)).min().unwrap()
    };
    let [whole, tiled] = [TOKENS, TOKENS / 16].map(least);
    let activation = 4 * TOKENS * WIDE;
    assert!(whole > 2 * activation, "{whole} bytes at once");
    // About eight activations of a tile, and its input and output.
    assert!(tiled < activation / 2, "{tiled} bytes in tiles");
}
