//! What the Newton-Schulz iteration of Muon takes beside the step that it is in, and what owners save of it.
//!
//! ```sh
//! cargo bench --bench muon
//! cargo bench --bench muon -- 1      # one rank only
//! cargo bench --bench muon -- --no-times # the bytes alone
//! ```
//!
//! Every row trains an MLP of 12 x (256, 1024) in blocks on `flex` devices, each of which has a batch of 128 rows. `Burn` is Burn's
//! Muon and AdamW in two parameter groups after the backward pass, all others are `MuonWithAdamWConfig`, fused; `no iteration`
//! is the same with `ns_steps` 0. Each way runs in a process of its own, and they take turns.
//!
//! `bytes` are those that a parameter takes between steps, `peak` the most in multiples of the parameters' in f32 (P), `time` the median
//! time of a step in multiples of AdamW's, fused. `iteration` is the part of the step that it has without an iteration missing.
//! `longest` is the part of all multiplications that the owner with the most has: what an iteration takes where each owner has a
//! device of its own.

mod network;
mod turns;

use backburn::memory::keep_pages;
use backburn::optim::{AdamWConfig, MuonConfig, MuonWithAdamWConfig, StateFormat, WeightFormat};
use backburn::{FusedConfig, FusedReplicas, Ownership, Sharding, cast};
use burn::module::ParamGroup;
use burn::optim::{self as stock, AdjustLrFn, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::{Distribution, FloatDType};
use peak_alloc::PeakAlloc;

use network::{Mlp, Network};
use turns::{Rounds, TURNS, Way};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const RATE: f64 = 1e-4;
const BATCH: usize = 128;
const BLOCKS: usize = 12;
const WIDTH: usize = 256;
const ROUNDS: usize = 9;
const STEPS: usize = 3;
const RANKS: [usize; 3] = [1, 2, 4];
const ADAMW: &str = "AdamW";
const MUON: &str = "Muon";
const WITHOUT: &str = "no iteration";
const WAYS: [&str; 6] = [
    ADAMW,
    "Burn",
    MUON,
    WITHOUT,
    "8 bits",
    "bf16 + 8 bits, 8 bits",
];
const BYTES_OF: &str = "--bytes";
const NO_TIMES: &str = "--no-times";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = arguments.iter().map(String::as_str);
    let (options, words): (Vec<_>, Vec<_>) = arguments.partition(|a| a.starts_with('-'));
    match words[..] {
        [way, ranks] if options.contains(&TURNS) => {
            keep_pages();
            turns::train(training(way, ranks.parse().unwrap()))
        }
        [way, ranks] if options.contains(&BYTES_OF) => print_bytes(way, ranks.parse().unwrap()),
        _ => print_table(&words, !options.contains(&NO_TIMES)),
    }
}

fn print_table(chosen: &[&str], times: bool) {
    println!(
        "{:<7}{:<24}{:>8}{:>8}{:>8}{:>11}{:>9}",
        "ranks", "", "bytes", "peak", "time", "iteration", "longest"
    );
    for ranks in RANKS {
        let name = ranks.to_string();
        if !chosen.is_empty() && !chosen.contains(&&*name) {
            continue;
        }
        // Burn's loop is that of one device.
        let ways = WAYS.into_iter();
        let ways: Vec<&str> = ways.filter(|way| ranks == 1 || *way != "Burn").collect();
        let rounds = times.then(|| {
            let ways = ways.iter().map(|way| Way::start(&[way, &name]));
            Rounds::of(ways.collect(), ROUNDS)
        });
        let time_of = |way: &str| {
            let index = ways.iter().position(|found| *found == way)?;
            Some(rounds.as_ref()?.ratio(index, 0, 0.5))
        };
        for way in &ways {
            let [bytes, peak] = turns::numbers(&[BYTES_OF, way, &name]);
            let time = time_of(way).map(|time| format!("{time:.2}"));
            let (mut iteration, mut longest) = (None, None);
            if *way == MUON {
                longest = Some(format!("{:.2}", longest_part(ranks)));
                let parts = time_of(MUON).zip(time_of(WITHOUT));
                iteration = parts.map(|(all, rest)| format!("{:.2}", 1.0 - rest / all));
            }
            let [time, iteration, longest] =
                [time, iteration, longest].map(Option::unwrap_or_default);
            println!(
                "{ranks:<7}{way:<24}{bytes:>8.3}{peak:>8.2}{time:>8}{iteration:>11}{longest:>9}"
            );
        }
    }
}

/// The side of the process that is asked for bytes.
fn print_bytes(way: &str, ranks: usize) {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    let mut train = training(way, ranks);
    for _ in 0..STEPS {
        train();
    }
    let (held, peak) = (BYTES.current_usage() - before, BYTES.peak_usage() - before);
    let elements = Mlp::of_size(BLOCKS, WIDTH, &Device::flex()).num_params();
    println!("{}", held as f64 / elements as f64);
    println!("{}", peak as f64 / (4 * elements) as f64);
}

/// The part of all multiplications of the iteration that falls to one owner at most.
fn longest_part(ranks: usize) -> f64 {
    let device = Device::flex().autodiff();
    let model = Mlp::of_size(BLOCKS, WIDTH, &device);
    let fused = replicas(model, optimizer(MUON), ranks, FusedConfig::new());
    let mut owned = vec![0.0; ranks];
    for block in 0..BLOCKS {
        for layer in 0..2 {
            // All matrices have one shape, or that transposed.
            let path = format!("blocks.{block}.{layer}.weight");
            owned[fused.owner(&path).expect("it is in training")] += 1.0;
        }
    }
    let longest = owned.iter().fold(0.0, |a: f64, b| a.max(*b));
    longest / owned.iter().sum::<f64>()
}

fn optimizer(way: &str) -> ModuleOptimizer {
    let recipe = MuonWithAdamWConfig::new(Vec::new());
    match way {
        ADAMW => AdamWConfig::new().init(),
        "Burn" => {
            let muon = stock::MuonConfig::new().with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
            let matrices = ParamGroup::from_predicate("weight");
            let adamw = stock::AdamWConfig::new().init();
            adamw.with_group(matrices, muon.build(), None)
        }
        MUON => recipe.init(),
        WITHOUT => recipe.with_muon(MuonConfig::new().with_ns_steps(0)).init(),
        "8 bits" => recipe.with_state_format(StateFormat::Bits8).init(),
        _ => recipe
            .with_state_format(StateFormat::Bits8)
            .with_weight_format(WeightFormat::Split24)
            .init(),
    }
}

fn replicas(
    model: Mlp,
    optimizer: ModuleOptimizer,
    ranks: usize,
    config: FusedConfig,
) -> FusedReplicas<Mlp> {
    let devices = vec![Device::flex().autodiff(); ranks];
    let config = config
        .with_sharding(Sharding::State)
        .with_ownership(Ownership::BySize);
    FusedReplicas::new(model, optimizer, devices)
        .unwrap()
        .with_config(config)
        .unwrap()
}

/// Makes one step at every call.
fn training(way: &str, ranks: usize) -> Box<dyn FnMut()> {
    let device = Device::flex().autodiff();
    device.seed(42);
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let model = Mlp::of_size(BLOCKS, WIDTH, &device);
    if way == "Burn" {
        let (mut model, mut optimizer) = (Some(model), optimizer(way));
        return Box::new(move || {
            let current = model.take().expect("there is one between steps");
            let gradients = current.loss(input.clone()).backward();
            let gradients = GradientsParams::from_grads(gradients, &current);
            model = Some(optimizer.step(RATE, current, gradients));
        });
    }
    let mut model = model.with_recompute_blocks(true);
    let mut config = FusedConfig::new();
    if way.starts_with("bf16") {
        model = cast(model, FloatDType::BF16).unwrap();
        // As is best on a processor.
        config = config.with_compute_dtype(Some(FloatDType::F32));
    }
    let mut fused = replicas(model, optimizer(way), ranks, config);
    Box::new(move || {
        let batches = vec![input.clone(); ranks];
        fused
            .step(RATE, batches, |model: &Mlp, input| model.loss(input))
            .unwrap();
    })
}
