//! Cost of Muon's Newton-Schulz iteration in a step, and the savings of ownership.
//!
//! ```sh
//! cargo bench --bench muon
//! cargo bench --bench muon -- 1      # one rank only
//! cargo bench --bench muon -- --no-times # the bytes alone
//! ```
//!
//! Every row trains an MLP of 12 x (256, 1024) in blocks on `flex` devices, with a batch of 128 rows for each. `Burn` is Burn's
//! Muon and AdamW in two parameter groups after the backward pass; all others are `MuonWithAdamWConfig`, fused; `no iteration`
//! has `ns_steps` 0. Each variant runs in a separate process, and they take turns.
//!
//! `bytes` are the bytes of a parameter between steps, `peak` the peak in multiples of the parameters' bytes in f32 (P), `time`
//! the median time of a step in multiples of fused AdamW. `iteration` is the fraction of the step that is missing without the
//! iteration. `longest` is the largest fraction of the multiplications of one owner: the time of the iteration if each owner
//! has its own device.

mod network;
mod turns;

use backburn::memory::keep_pages;
use backburn::optim::{AdamWConfig, MuonConfig, MuonWithAdamWConfig, StateFormat, WeightFormat};
use backburn::{FusedConfig, FusedReplicas, Ownership, Sharding, cast};
use burn::module::ParamGroup;
use burn::optim::{self as stock, AdjustLrFn, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::{Distribution, FloatDType};
use peak_alloc::PeakAlloc;

use network::{Mlp, Network};
use turns::{Rounds, TURNS, Worker};

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
const VARIANTS: [&str; 6] = [
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
        "{:<7}{:<24}{:>8}{:>8}{:>8}{:>11}{:>9}",
        "ranks", "", "bytes", "peak", "time", "iteration", "longest"
    );
    for ranks in RANKS {
        let name = ranks.to_string();
        if !chosen.is_empty() && !chosen.contains(&&*name) {
            continue;
        }
        // Burn's loop uses one device.
        let variants = VARIANTS.into_iter();
        let variants: Vec<&str> = variants
            .filter(|variant| ranks == 1 || *variant != "Burn")
            .collect();
        let rounds = times.then(|| {
            let workers = variants
                .iter()
                .map(|variant| Worker::start(&[variant, &name]));
            Rounds::of(workers.collect(), ROUNDS)
        });
        let time_of = |variant: &str| {
            let index = variants.iter().position(|found| *found == variant)?;
            Some(rounds.as_ref()?.ratio(index, 0, 0.5))
        };
        for variant in &variants {
            let [bytes, peak] = turns::numbers(&[BYTES_OF, variant, &name]);
            let time = time_of(variant).map(|time| format!("{time:.2}"));
            let (mut iteration, mut longest) = (None, None);
            if *variant == MUON {
                longest = Some(format!("{:.2}", longest_part(ranks)));
                let parts = time_of(MUON).zip(time_of(WITHOUT));
                iteration = parts.map(|(all, rest)| format!("{:.2}", 1.0 - rest / all));
            }
            let [time, iteration, longest] =
                [time, iteration, longest].map(Option::unwrap_or_default);
            println!(
                "{ranks:<7}{variant:<24}{bytes:>8.3}{peak:>8.2}{time:>8}{iteration:>11}{longest:>9}"
            );
        }
    }
}

/// Prints the bytes, in the measured process.
fn print_bytes(variant: &str, ranks: usize) {
    let before = BYTES.current_usage();
    BYTES.reset_peak_usage();
    let mut train = training(variant, ranks);
    for _ in 0..STEPS {
        train();
    }
    let (held, peak) = (BYTES.current_usage() - before, BYTES.peak_usage() - before);
    let elements = Mlp::of_size(BLOCKS, WIDTH, &Device::flex()).num_params();
    println!("{}", held as f64 / elements as f64);
    println!("{}", peak as f64 / (4 * elements) as f64);
}

/// Returns the largest fraction of the iteration's multiplications of one owner.
fn longest_part(ranks: usize) -> f64 {
    let device = Device::flex().autodiff();
    let model = Mlp::of_size(BLOCKS, WIDTH, &device);
    let fused = replicas(model, optimizer(MUON), ranks, FusedConfig::new());
    let mut owned = vec![0.0; ranks];
    for block in 0..BLOCKS {
        for layer in 0..2 {
            // All matrices have one shape, or its transpose.
            let path = format!("blocks.{block}.{layer}.weight");
            owned[fused.owner(&path).expect("it is in training")] += 1.0;
        }
    }
    let longest = owned.iter().fold(0.0, |a: f64, b| a.max(*b));
    longest / owned.iter().sum::<f64>()
}

fn optimizer(variant: &str) -> ModuleOptimizer {
    let recipe = MuonWithAdamWConfig::new(Vec::new());
    match variant {
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

/// Returns a function that makes one step.
fn training(variant: &str, ranks: usize) -> Box<dyn FnMut()> {
    let device = Device::flex().autodiff();
    device.seed(42);
    let input = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, &device);
    let model = Mlp::of_size(BLOCKS, WIDTH, &device);
    if variant == "Burn" {
        return network::stock(model, optimizer(variant), input, RATE);
    }
    let mut model = model.with_recompute_blocks(true);
    let mut config = FusedConfig::new();
    if variant.starts_with("bf16") {
        model = cast(model, FloatDType::BF16).unwrap();
        // The fastest type on a processor.
        config = config.with_compute_dtype(Some(FloatDType::F32));
    }
    let mut fused = replicas(model, optimizer(variant), ranks, config);
    Box::new(move || {
        let batches = vec![input.clone(); ranks];
        fused
            .step(RATE, batches, |model: &Mlp, input| model.loss(input))
            .unwrap();
    })
}
