//! Memory that a GPU's pools reserve in training: stock Burn and backburn, by setting of the pools.
//!
//! ```sh
//! cargo bench --bench pools --features wgpu,fusion
//! ```
//!
//! Every row trains the MLP of the memory benchmark for five steps with Adam in f32 on wgpu, in a
//! process of its own, and prints the most bytes that the device's pools reserved and had in use at
//! the begin of an update or at the end of a step, in multiples of the parameters' bytes (P).

mod network;

use std::process::Command;

use backburn::FusedOptimizer;
use backburn::memory::{MemoryRecorder, match_pool_sizes};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::Distribution;

use network::{Mlp, Network};

const STEPS: usize = 5;
const LEARNING_RATE: f64 = 1e-4;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    match arguments.as_slice() {
        [pools, way] => train(pools, way),
        _ => compare(),
    }
}

fn compare() {
    println!(
        "{:<14}{:<16}{:>14}{:>12}",
        "pools", "", "reserved / P", "in use / P"
    );
    for pools in ["default", "size-match"] {
        for way in ["stock", "fused", "fused-ours"] {
            let mut process = Command::new(std::env::current_exe().expect("a program"));
            let status = process.args([pools, way]).status();
            assert!(status.is_ok_and(|status| status.success()), "{pools} {way}");
        }
    }
}

fn train(pools: &str, way: &str) {
    if pools == "size-match" {
        match_pool_sizes().expect("nothing was used before");
    }
    let device = Device::wgpu(Default::default()).autodiff();
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = Mlp::init(&device);
    let parameters = 4 * model.num_params();
    let recorder = MemoryRecorder::start_on(&device).expect("the first recording");
    match way {
        "stock" => stock(model, input, &recorder),
        "fused" => fused(model, input, AdamConfig::new().init()),
        _ => fused(model, input, backburn::optim::AdamConfig::new().init()),
    }
    let timeline = recorder.finish().expect("steps were recorded");
    let multiple = |bytes: usize| bytes as f64 / parameters as f64;
    println!(
        "{pools:<14}{way:<16}{:>14.2}{:>12.2}",
        multiple(timeline.peak_reserved().unwrap_or_default()),
        multiple(timeline.peak().bytes.total())
    );
}

fn stock(mut model: Mlp, input: Tensor<2>, recorder: &MemoryRecorder) {
    let mut optimizer = AdamConfig::new().init();
    for _ in 0..STEPS {
        let loss = recorder.forward(|| model.loss(input.clone()));
        let gradients = recorder.backward(|| GradientsParams::from_grads(loss.backward(), &model));
        model = recorder.update(|| optimizer.step(LEARNING_RATE, model, gradients));
    }
}

fn fused(model: Mlp, input: Tensor<2>, optimizer: ModuleOptimizer) {
    let mut fused = FusedOptimizer::new(model, optimizer);
    for _ in 0..STEPS {
        fused.step(LEARNING_RATE, |model| model.loss(input.clone()));
    }
}
