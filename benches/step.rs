//! Time of whole training steps: stock Burn, fused with Burn's optimizer, fused with ours.
//!
//! ```sh
//! cargo bench --bench step
//! cargo bench --bench step -- MLP   # the rows with this in their name
//! ```
//!
//! Every row trains in f32 on the CPU. Round by round it runs a step of Burn's `Learner`, one of a
//! `FusedOptimizer` with the same optimizer of Burn's, and one with ours, in changing order, and
//! prints the median time of the stock step and, for the others, the median over the rounds of their
//! time in multiples of it. `noise` is a second stock learner in the same rounds: what a ratio of
//! equal work looks like, with its lower and upper quartile.

mod network;

use std::time::Instant;

use backburn::FusedOptimizer;
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::{AdamConfig, AdamWConfig, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::train::{InferenceStep, Learner, TrainStep};

use network::vit::VitConfig;
use network::{Mlp, Network, Recurrent};

const LEARNING_RATE: f64 = 1e-4;

fn main() {
    // Cargo passes `--bench` along.
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let is_chosen =
        |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));

    println!(
        "{:<24}{:<8}{:>8}{:>12}{:>10}{:>10}{:>20}",
        "", "", "rounds", "stock (ms)", "fused", "ours", "noise"
    );
    let name = "MLP 12 x (512, 2048)";
    if is_chosen(name) {
        rows(Mlp::init, name, 21, [16, 512]);
    }
    let config = VitConfig::digits();
    let name = "ViT digits, batch 64";
    if is_chosen(name) {
        let size = config.image_size;
        rows(
            |device| config.init(device),
            name,
            41,
            [64, config.channels, size, size],
        );
    }
    let config = VitConfig::vit_s_16();
    for (name, batch, rounds) in [("ViT-S/16, batch 1", 1, 15), ("ViT-S/16, batch 8", 8, 5)] {
        if is_chosen(name) {
            let size = config.image_size;
            let shape = [batch, config.channels, size, size];
            rows(|device| config.init(device), name, rounds, shape);
        }
    }
    let name = "LSTM 2 x 256, 32 steps";
    if is_chosen(name) {
        rows(Recurrent::init, name, 21, [16, 32, 256]);
    }
}

fn rows<const D: usize, M>(
    init: impl Fn(&Device) -> M,
    name: &str,
    rounds: usize,
    input: [usize; D],
) where
    M: Network<D> + TrainStep<Input = Tensor<D>> + InferenceStep,
    M: Module + std::fmt::Display + 'static,
{
    let (burns, ours) = (AdamConfig::new(), backburn::optim::AdamConfig::new());
    row(
        &init,
        name,
        "Adam",
        rounds,
        input,
        || burns.init(),
        || ours.init(),
    );
    let (burns, ours) = (AdamWConfig::new(), backburn::optim::AdamWConfig::new());
    row(
        &init,
        name,
        "AdamW",
        rounds,
        input,
        || burns.init(),
        || ours.init(),
    );
}

fn row<const D: usize, M>(
    init: impl Fn(&Device) -> M,
    name: &str,
    optimizer: &str,
    rounds: usize,
    input: [usize; D],
    burns: impl Fn() -> ModuleOptimizer,
    ours: impl Fn() -> ModuleOptimizer,
) where
    M: Network<D> + TrainStep<Input = Tensor<D>> + InferenceStep,
    M: Module + std::fmt::Display + 'static,
{
    let device = Device::flex().autodiff();
    let input = Tensor::<D>::random(input, Distribution::Default, &device);
    let stock = || {
        let mut learner = Learner::new(init(&device), burns(), ConstantLr::new(LEARNING_RATE));
        let input = input.clone();
        move || {
            let output = learner.train_step(input.clone());
            learner.lr_step();
            learner.optimizer_step(output.grads);
        }
    };
    let fused = |optimizer: ModuleOptimizer| {
        let mut fused = FusedOptimizer::new(init(&device), optimizer);
        let input = input.clone();
        move || {
            fused.step(LEARNING_RATE, |model| model.loss(input.clone()));
        }
    };
    let (mut stock, mut again) = (stock(), stock());
    let (mut with_burns, mut with_ours) = (fused(burns()), fused(ours()));
    let mut ways: [&mut dyn FnMut(); 4] = [&mut stock, &mut with_burns, &mut with_ours, &mut again];

    let mut round = |first: usize| {
        let mut times = [0.0; 4];
        for offset in 0..4 {
            let way = (first + offset) % 4;
            let start = Instant::now();
            ways[way]();
            times[way] = start.elapsed().as_secs_f64();
        }
        times
    };
    round(0); // The first step makes the optimizer's state.
    let rounds: Vec<[f64; 4]> = (0..rounds).map(round).collect();
    let over_stock =
        |way: usize, part: f64| quantile(rounds.iter().map(|times| times[way] / times[0]), part);
    let noise = [0.5, 0.25, 0.75].map(|part| over_stock(3, part));
    println!(
        "{name:<24}{optimizer:<8}{:>8}{:>12.1}{:>10.2}{:>10.2}{:>20}",
        rounds.len(),
        1e3 * quantile(rounds.iter().map(|times| times[0]), 0.5),
        over_stock(1, 0.5),
        over_stock(2, 0.5),
        format!("{:.2} ({:.2} to {:.2})", noise[0], noise[1], noise[2]),
    );
}

fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}
