//! Time of a step by its number of checkpointed blocks. The blocks are as small as possible, so their own cost remains.
//!
//! ```sh
//! cargo bench --bench blocks
//! ```

use std::time::{Duration, Instant};

use backburn::{FusedOptimizer, gradient_checkpointing};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};

const BLOCKS: [usize; 4] = [100, 200, 400, 800];
/// Number of rounds. The fastest counts. The cases alternate, so that all run under the same load.
const ROUNDS: usize = 9;
const RATE: f64 = 1e-3;

fn main() {
    println!("| blocks | stock (ms) | fused | checkpointed | more than fused (us a block) |");
    println!("|---:|---:|---:|---:|---:|");
    for blocks in BLOCKS {
        let mut variants = [stock(blocks), fused(blocks, false), fused(blocks, true)];
        let mut fastest = [Duration::MAX; 3];
        for _ in 0..ROUNDS {
            for (variant, fastest) in variants.iter_mut().zip(&mut fastest) {
                let start = Instant::now();
                variant();
                *fastest = start.elapsed().min(*fastest);
            }
        }
        let [stock, fused, in_blocks] = fastest.map(|time| time.as_secs_f64());
        println!(
            "| {blocks} | {:.1} | {:.2} | {:.2} | {:.0} |",
            1e3 * stock,
            fused / stock,
            in_blocks / stock,
            1e6 * (in_blocks - fused) / blocks as f64
        );
    }
}

type Step = Box<dyn FnMut()>;

fn device() -> Device {
    Device::flex().autodiff()
}

fn model(blocks: usize) -> Vec<Linear> {
    let layer = |_| LinearConfig::new(2, 2).init(&device());
    (0..blocks).map(layer).collect()
}

fn loss(model: &[Linear], in_blocks: bool) -> Tensor<1> {
    let run = |layer: &Linear, x: Tensor<2>| layer.forward(x);
    let x = Tensor::<2>::ones([2, 2], &device());
    let forward = |x, layer| match in_blocks {
        true => gradient_checkpointing(layer, x, run),
        false => run(layer, x),
    };
    model.iter().fold(x, forward).mean()
}

fn stock(blocks: usize) -> Step {
    let (mut model, mut optimizer) = (Some(model(blocks)), SgdConfig::new().init());
    Box::new(move || {
        let before = model.take().expect("every step gives it back");
        let gradients = loss(&before, false).backward();
        let gradients = GradientsParams::from_grads(gradients, &before);
        model = Some(optimizer.step(RATE, before, gradients));
    })
}

fn fused(blocks: usize, in_blocks: bool) -> Step {
    let mut fused = FusedOptimizer::new(model(blocks), SgdConfig::new().init()).unwrap();
    Box::new(move || drop(fused.step(RATE, |model| loss(model, in_blocks)).unwrap()))
}
