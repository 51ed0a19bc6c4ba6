//! Data parallel training on several devices: stock Burn's two multi-device optimizers, and backburn's `FusedReplicas`.
//!
//! ```sh
//! cargo bench --bench replicas
//! cargo bench --bench replicas -- 4          # four ranks only
//! cargo bench --bench replicas -- --no-times # the bytes alone
//! ```
//!
//! Every row trains an MLP of 12 x (512, 2048) with Adam in f32 and a batch of 16 on each of N ranks, which are `flex`
//! devices. Stock is Burn's own `MultiDevicesTrainStep` and `Learner`, fused with `Ownership::BySize`. `Full, blocks` recomputes every block
//! (`backburn::gradient_checkpointing`), `ours` steps with the Adam of `backburn::optim` instead of Burn's. Each variant runs in a separate process.
//!
//! `process` is the peak of the whole process in multiples of the bytes of the parameters (P), and `of stock` the same in
//! multiples of stock's `OptimSharded`. The ranks share one memory here, so the bytes of a rank are counted by the owner of
//! each parameter: the bytes that it owns (weights and Adam's two moments), the bytes between steps, and the bytes at the
//! peak, with gathered weights and received gradients, without activations. The table has the rank with the most. In stock
//! every rank has all weights and all gradients; if the optimizer is sharded, its states are with the owners.
//!
//! `time` is the median time of a step in multiples of stock's `OptimSharded`, in rounds of one step each.

mod network;
mod turns;

use backburn::memory::keep_pages;
use backburn::{FusedConfig, FusedReplicas, Ownership, RankBytes, Sharding};
use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::{AdamConfig, GradientsAccumulator, MultiGradientsParams};
use burn::prelude::*;
use burn::tensor::Distribution;
use burn::train::Learner;
use burn::train::train::MultiDevicesTrainStep;
use peak_alloc::PeakAlloc;

use network::{Mlp, Network};
use turns::{Rounds, TURNS, Worker};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const LEARNING_RATE: f64 = 1e-4;
const STEPS: usize = 3;
const ROUNDS: usize = 15;
const RANKS: [usize; 4] = [1, 2, 4, 8];
const VARIANTS: [&str; 7] = [
    "stock sharded",
    "stock main",
    "State",
    "Full",
    "Full, blocks",
    "State, ours",
    "Full, ours",
];
const BYTES_OF: &str = "--bytes";
const NO_TIMES: &str = "--no-times";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = arguments.iter().map(String::as_str);
    let (options, words): (Vec<_>, Vec<_>) = arguments.partition(|a| a.starts_with('-'));
    match words[..] {
        [variant, ranks] if options.contains(&TURNS) => {
            keep_pages();
            turns::train(training(variant, ranks.parse().unwrap()))
        }
        [variant, ranks] if options.contains(&BYTES_OF) => {
            print_bytes(variant, ranks.parse().unwrap())
        }
        _ => print_table(&words, !options.contains(&NO_TIMES)),
    }
}

fn print_table(chosen: &[&str], times: bool) {
    println!(
        "{:<7}{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}",
        "ranks", "", "process", "of stock", "owned", "at rest", "peak", "time"
    );
    for ranks in RANKS {
        let name = ranks.to_string();
        if !chosen.is_empty() && !chosen.contains(&&*name) {
            continue;
        }
        let bytes = VARIANTS.map(|variant| Bytes::of(variant, &name));
        let rounds = times.then(|| {
            let workers = VARIANTS.map(|variant| Worker::start(&[variant, &name]));
            Rounds::of(workers.into(), ROUNDS)
        });
        for (index, (variant, of_variant)) in VARIANTS.iter().zip(bytes).enumerate() {
            let time = rounds.as_ref().map(|rounds| rounds.ratio(index, 0, 0.5));
            let time = time.map(|time| format!("{time:.2}")).unwrap_or_default();
            println!(
                "{ranks:<7}{variant:<16}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>8}",
                of_variant.process,
                of_variant.process / bytes[0].process,
                of_variant.owned,
                of_variant.at_rest,
                of_variant.peak,
                time,
            );
        }
    }
}

/// Bytes in multiples of the bytes of the parameters.
#[derive(Clone, Copy)]
struct Bytes {
    process: f64,
    owned: f64,
    at_rest: f64,
    peak: f64,
}

impl Bytes {
    /// Measures them in a separate process.
    fn of(variant: &str, ranks: &str) -> Self {
        let [process, owned, at_rest, peak] = turns::numbers(&[BYTES_OF, variant, ranks]);
        Self {
            process,
            owned,
            at_rest,
            peak,
        }
    }
}

/// Prints the bytes, in the measured process.
fn print_bytes(variant: &str, ranks: usize) {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    let mut train = training(variant, ranks);
    let mut of_ranks = Vec::new();
    for _ in 0..STEPS {
        of_ranks = train();
    }
    let process = BYTES.peak_usage() - before;
    let all = Mlp::init(&Device::flex()).num_params() * size_of::<f32>();
    // Adam has two moments.
    let states = |bytes: &RankBytes| 2 * bytes.owned;
    let most = |of: fn(&RankBytes) -> usize, with_states: bool| {
        let bytes = of_ranks.iter().map(|bytes| {
            let states = if with_states { states(bytes) } else { 0 };
            of(bytes) + states
        });
        bytes.max()
    };
    let [owned, at_rest, peak] = match variant {
        // The first rank owns everything and has all gradients, those of the others one after the other.
        "stock main" => [3 * all, 3 * all, 5 * all],
        "stock sharded" => {
            let states = 2 * all / ranks;
            [states + all / ranks, states + all, states + 2 * all]
        }
        _ => [
            most(|bytes| bytes.owned, true).unwrap(),
            most(|bytes| bytes.between_steps, true).unwrap(),
            most(|bytes| bytes.peak, true).unwrap(),
        ],
    };
    for bytes in [process, owned, at_rest, peak] {
        println!("{}", bytes as f64 / all as f64);
    }
}

/// Returns a function that makes one step, and returns the bytes of the ranks, if known.
fn training(variant: &str, ranks: usize) -> Box<dyn FnMut() -> Vec<RankBytes>> {
    let device = Device::flex().autodiff();
    device.seed(42);
    let devices = vec![device.clone(); ranks];
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = Mlp::init(&device).with_recompute_blocks(variant == "Full, blocks");
    let optimizer = match variant.ends_with("ours") {
        true => backburn::optim::AdamConfig::new().init(),
        false => AdamConfig::new().init(),
    };
    if let Some(stock) = variant.strip_prefix("stock ") {
        let is_sharded = stock == "sharded";
        let mut learner = Learner::new(model, optimizer, ConstantLr::new(LEARNING_RATE));
        let step = MultiDevicesTrainStep::<Mlp>::new(&devices);
        return Box::new(move || {
            let mut loaders: Vec<Box<dyn DataLoaderIterator<_>>> = Vec::new();
            loaders.resize_with(ranks, || Box::new(Same(input.clone())));
            let (outputs, _) = step.step(&mut loaders, &learner.model()).unwrap();
            learner.lr_step();
            let gradients = outputs.into_iter().map(|output| output.output.grads);
            if is_sharded {
                let with_device = gradients.zip(devices.iter().cloned());
                let grads = with_device.collect();
                learner.optimizer_step_multi(MultiGradientsParams { grads });
            } else {
                let model = learner.model();
                let mut sum = GradientsAccumulator::new();
                for gradients in gradients {
                    sum.accumulate(&model, gradients.to_device(&devices[0], &model));
                }
                drop(model);
                learner.optimizer_step(sum.grads());
            }
            Vec::new()
        });
    }
    let sharding = match variant.starts_with("State") {
        true => Sharding::State,
        false => Sharding::Full,
    };
    let mut fused = FusedReplicas::new(model, optimizer, devices)
        .unwrap()
        .with_config(
            FusedConfig::new()
                .with_sharding(sharding)
                .with_ownership(Ownership::BySize),
        )
        .unwrap();
    Box::new(move || {
        let batches = vec![input.clone(); ranks];
        fused
            .step(LEARNING_RATE, batches, |model: &Mlp, input| {
                model.loss(input)
            })
            .unwrap();
        fused.bytes()
    })
}

/// A loader that always has the same batch.
struct Same(Tensor<2>);

impl Iterator for Same {
    type Item = Result<Tensor<2>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(Ok(self.0.clone()))
    }
}

impl DataLoaderIterator<Tensor<2>> for Same {
    fn progress(&self) -> Progress {
        Progress::new(0, 1, None)
    }
}
