//! Time of whole training steps: stock Burn and backburn.
//!
//! ```sh
//! cargo bench --bench step
//! cargo bench --bench step -- MLP        # the rows with this in their name
//! cargo bench --bench step -- policies   # the second table
//! cargo bench --bench step -- gradient-checkpointing   # the third
//! cargo bench --bench step -- --without-keep-pages     # on a heap that releases its pages
//! ```
//!
//! Every row trains in f32 on the CPU. Each variant runs in a separate process, like a user's
//! program, and keeps the pages of its heap (`backburn::memory::keep_pages()`), stock and fused. In each
//! round they make one step each, in changing order. The table has the median time of the stock step and,
//! for the others, the median over the rounds of their time in multiples of it.
//!
//! The first table launches Burn's `Learner`, a `FusedLearner` with the same optimizer of Burn's, and
//! one with ours. `noise` is a second stock learner in the same rounds: the ratio of equal work,
//! with its lower and upper quartile.
//!
//! The second one trains the MLP with AdamW under each gradient policy, in a loop with Burn alone and
//! in one with `FusedOptimizer`. `of plain` is the fused step in multiples of the plain fused step in
//! the same rounds. In the last row Burn runs forward and backward once more on a copy and drops the gradients: the lower
//! bound of two passes.
//!
//! The third one is a `FusedLearner` with Burn's Adam, plain, with Burn's `gradient_checkpointing()`
//! (`balanced`) and with `backburn::gradient_checkpointing` around every block (`block`), in multiples of the plain one.

mod network;
mod policies;
mod turns;

use std::sync::{Arc, Mutex};

use backburn::memory::keep_pages;
use backburn::train::{FusedLearner, LaunchFused};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::{AdamConfig, AdamWConfig, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::train::{InferenceStep, Learner, LearnerModel, SupervisedTraining, TrainStep};

use network::vit::VitConfig;
use network::{Mlp, Network, Recurrent};
use policies::Policy;
use turns::{Rounds, TURNS, Turn, Worker};

const LEARNING_RATE: f64 = 1e-4;
const WITHOUT_KEEP_PAGES: &str = "--without-keep-pages";

/// The networks of the first table, with their rounds.
const ROWS: [(&str, usize); 5] = [
    ("MLP 12 x (512, 2048)", 21),
    ("ViT digits, batch 64", 41),
    ("ViT-S/16, batch 1", 15),
    ("ViT-S/16, batch 8", 5),
    ("LSTM 2 x 256, 32 steps", 21),
];
const OPTIMIZERS: [&str; 2] = ["Adam", "AdamW"];
const VARIANTS: [&str; 4] = ["stock", "fused", "ours", "again"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = arguments.iter().map(String::as_str);
    let (options, words): (Vec<_>, Vec<_>) = arguments.partition(|a| a.starts_with('-'));
    // Before any training.
    let pages = match !options.contains(&WITHOUT_KEEP_PAGES) && keep_pages() {
        true => "the heaps keep their pages",
        false => "the heaps give their pages back",
    };
    match words[..] {
        ["policy", variant, index] if options.contains(&TURNS) => {
            train_policy(variant, index.parse().unwrap());
        }
        [network, optimizer, variant] if options.contains(&TURNS) => {
            train_network(network, optimizer, variant);
        }
        _ => {
            println!("{pages}\n");
            print_tables(&words);
        }
    }
}

fn print_tables(chosen: &[&str]) {
    let is_chosen =
        |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(*part));

    if ROWS.iter().any(|(name, _)| is_chosen(name)) {
        println!(
            "{:<24}{:<8}{:>8}{:>12}{:>10}{:>10}{:>20}",
            "", "", "rounds", "stock (ms)", "fused", "ours", "noise"
        );
    }
    for (name, rounds) in ROWS.into_iter().filter(|(name, _)| is_chosen(name)) {
        for optimizer in OPTIMIZERS {
            let workers = VARIANTS.map(|variant| Worker::start(&[name, optimizer, variant]));
            let rounds = Rounds::of(workers.into(), rounds);
            let noise = [0.5, 0.25, 0.75].map(|part| rounds.ratio(3, 0, part));
            println!(
                "{name:<24}{optimizer:<8}{:>8}{:>12.1}{:>10.2}{:>10.2}{:>20}",
                rounds.count(),
                1e3 * rounds.median(0),
                rounds.ratio(1, 0, 0.5),
                rounds.ratio(2, 0, 0.5),
                format!("{:.2} ({:.2} to {:.2})", noise[0], noise[1], noise[2]),
            );
        }
    }
    if is_chosen("gradient-checkpointing") {
        print_gradient_checkpointing();
    }
    if is_chosen("policies") {
        println!(
            "\n{:<32}{:>8}{:>12}{:>10}{:>10}",
            "MLP 12 x (512, 2048), AdamW", "rounds", "stock (ms)", "fused", "of plain"
        );
        for (index, (_, name)) in Policy::ALL.iter().enumerate() {
            let index = index.to_string();
            let workers =
                ["stock", "fused"].map(|variant| Worker::start(&["policy", variant, &index]));
            let mut workers = Vec::from(workers);
            workers.push(Worker::start(&["policy", "fused", "0"]));
            let rounds = Rounds::of(workers, 15);
            println!(
                "{name:<32}{:>8}{:>12.1}{:>10.2}{:>10.2}",
                rounds.count(),
                1e3 * rounds.median(0),
                rounds.ratio(1, 0, 0.5),
                rounds.ratio(1, 2, 0.5),
            );
        }
        let workers = ["more", "fused"].map(|variant| Worker::start(&["policy", variant, "0"]));
        let rounds = Rounds::of(workers.into(), 15);
        println!(
            "{:<32}{:>8}{:>12}{:>10}{:>10.2}",
            "plain, a backward pass more",
            rounds.count(),
            "",
            "",
            rounds.ratio(0, 1, 0.5),
        );
    }
}

fn print_gradient_checkpointing() {
    println!(
        "\n{:<24}{:>16}{:>12}{:>10}{:>10}",
        "gradient-checkpointing", "rounds", "plain (ms)", "balanced", "block"
    );
    for (name, rounds) in ROWS
        .into_iter()
        .filter(|(name, _)| !name.starts_with("LSTM"))
    {
        let workers =
            ["fused", "balanced", "block"].map(|variant| Worker::start(&[name, "Adam", variant]));
        let rounds = Rounds::of(workers.into(), rounds);
        println!(
            "{name:<24}{:>16}{:>12.1}{:>10.2}{:>10.2}",
            rounds.count(),
            1e3 * rounds.median(0),
            rounds.ratio(1, 0, 0.5),
            rounds.ratio(2, 0, 0.5),
        );
    }
}

fn train_policy(variant: &str, policy: usize) {
    let device = Device::flex().autodiff();
    let (policy, _) = Policy::ALL[policy];
    let input = Tensor::random([16, 512], Distribution::Default, &device);
    let model = Mlp::init(&device);
    if variant == "stock" {
        turns::train(policy.stock(model, input));
    }
    let other = model.clone();
    let mut step = policy.fused(model, input.clone());
    turns::train(move || {
        if variant == "more" {
            drop(other.loss(input.clone()).backward());
        }
        step()
    })
}

fn train_network(network: &str, optimizer: &str, variant: &str) {
    let device = match variant {
        "balanced" => Device::flex().autodiff().gradient_checkpointing(),
        _ => Device::flex().autodiff(),
    };
    let device = &device;
    let blocks = variant == "block";
    let optimizer = match (optimizer, variant) {
        ("Adam", "ours") => backburn::optim::AdamConfig::new().init(),
        ("Adam", _) => AdamConfig::new().init(),
        (_, "ours") => backburn::optim::AdamWConfig::new().init(),
        _ => AdamWConfig::new().init(),
    };
    let image = |config: &VitConfig, batch| {
        let size = config.image_size;
        random([batch, config.channels, size, size], device)
    };
    match network {
        "MLP 12 x (512, 2048)" => {
            let model = Mlp::init(device).with_recompute_blocks(blocks);
            launch(model, random([16, 512], device), optimizer, variant);
        }
        "LSTM 2 x 256, 32 steps" => {
            let input = random([16, 32, 256], device);
            launch(Recurrent::init(device), input, optimizer, variant);
        }
        vit => {
            let (config, batch) = match vit {
                "ViT digits, batch 64" => (VitConfig::digits(), 64),
                "ViT-S/16, batch 1" => (VitConfig::vit_s_16(), 1),
                _ => (VitConfig::vit_s_16(), 8),
            };
            let config = config.with_recompute_blocks(blocks);
            launch(
                config.init(device),
                image(&config, batch),
                optimizer,
                variant,
            );
        }
    }
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device)
}

/// Trains on `input` forever.
fn launch<const D: usize, M>(model: M, input: Tensor<D>, optimizer: ModuleOptimizer, variant: &str)
where
    M: LearnerModel + TrainStep<Input = Tensor<D>> + InferenceStep<Input = Tensor<D>>,
    <M as TrainStep>::Output: 'static,
    <M as InferenceStep>::Output: 'static,
{
    let folder = tempfile::tempdir().unwrap();
    let rate = ConstantLr::new(LEARNING_RATE);
    if let "stock" | "again" = variant {
        let learner = Learner::new(model, optimizer, rate);
        training(folder.path(), input).launch(learner);
    } else {
        let learner = FusedLearner::new(model, optimizer, rate);
        training(folder.path(), input).launch_fused(learner);
    }
}

fn training<const D: usize, M>(folder: &std::path::Path, input: Tensor<D>) -> SupervisedTraining<M>
where
    M: LearnerModel + TrainStep<Input = Tensor<D>> + InferenceStep<Input = Tensor<D>>,
{
    let turn = Arc::new(Mutex::new(Turn::new()));
    let loader = || DataLoaderBuilder::new(Same(input.clone())).batch_size(1);
    let (train, valid) = (
        loader().build(Turns(turn.clone())),
        loader().build(Turns(turn)),
    );
    SupervisedTraining::new(folder, train, valid).with_application_logger(None)
}

/// A loader that waits for a turn: a batch is loaded when the previous step has ended.
#[derive(Clone)]
struct Turns(Arc<Mutex<Turn>>);

impl Dataset<()> for Turns {
    fn get(&self, _index: usize) -> Result<(), DatasetError> {
        self.0.lock().unwrap().wait();
        Ok(())
    }

    fn len(&self) -> usize {
        1_000_000
    }
}

struct Same<const D: usize>(Tensor<D>);

impl<const D: usize> Batcher<(), Tensor<D>> for Same<D> {
    fn batch(&self, _items: Vec<()>, _device: &Device) -> Tensor<D> {
        self.0.clone()
    }
}
