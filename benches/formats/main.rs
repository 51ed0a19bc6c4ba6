//! Training with weights and optimizer states in fewer bits: bytes, time and quality.
//!
//! ```sh
//! cargo bench --bench formats              # bytes and time
//! cargo bench --bench formats -- quality   # bits per byte of a held-out text (half an hour)
//! cargo bench --bench formats -- quality Adafactor   # the modes with this in their name
//! cargo bench --bench formats -- long      # the same after ten times the steps, with states in few bits
//! cargo bench --bench formats -- errors    # errors of quantized frozen weights
//! ```
//!
//! The first table trains an MLP of 100 million parameters and a transformer of 6 million in every mode, in stock
//! Burn's loop and fused, each in a separate process. It has the bytes of a parameter after a step, without activations
//! and gradients; the peak in multiples of the parameters' bytes in f32 (P); and the time of a step in multiples of
//! the fused one in f32 (the fastest of ten steps).

mod errors;
mod mode;
#[path = "../network/mod.rs"]
mod network;
mod quality;
mod transformer;

use std::process::Command;
use std::time::Instant;

use backburn::FusedOptimizer;
use backburn::memory::keep_pages;
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::Distribution;
use peak_alloc::PeakAlloc;

use mode::{MODES, Mode};
use network::{Mlp, Network};
use transformer::{Transformer, TransformerConfig, VOCABULARY};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const STEPS: usize = 10;
const RATE: f64 = 1e-4;
const NETWORKS: [&str; 2] = [
    "MLP 12 x (1024, 4096), batch 16",
    "transformer 8 x 256, 4 x 64 bytes",
];
const LOOPS: [&str; 2] = ["stock", "fused"];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["errors"] => errors::print(),
        ["quality"] => quality::print(""),
        ["quality", part] => quality::print(part),
        ["long"] => quality::print_long(""),
        ["long", part] => quality::print_long(part),
        [network, training, mode] => {
            let measured = measure(network, training == &"fused", Mode::named(mode));
            println!("{} {} {}", measured.at_rest, measured.peak, measured.time);
        }
        _ => print(),
    }
}

#[derive(Clone, Copy)]
struct Measured {
    /// Bytes for each parameter.
    at_rest: f64,
    /// Peak in multiples of the parameters' bytes in f32.
    peak: f64,
    /// Seconds of a step.
    time: f64,
}

fn print() {
    println!("| | | | bytes a parameter | peak (P) | of stock in f32 | time of a step |");
    println!("|---|---|---|---:|---:|---:|---:|");
    for network in NETWORKS {
        let stock = row(network, "stock", MODES[0].name);
        let fused = row(network, "fused", MODES[0].name);
        for mode in MODES {
            for training in LOOPS {
                if training == "stock" && !mode.is_of_stock() {
                    continue;
                }
                let found = match (mode.name == MODES[0].name, training) {
                    (true, "stock") => stock,
                    (true, _) => fused,
                    _ => row(network, training, mode.name),
                };
                println!(
                    "| {network} | {} | {training} | {:.3} | {:.2} | {:.2} | {:.2} |",
                    mode.name,
                    found.at_rest,
                    found.peak,
                    found.peak / stock.peak,
                    found.time / fused.time
                );
            }
        }
    }
}

/// Measures a row in a separate process.
fn row(network: &str, training: &str, mode: &str) -> Measured {
    let mut process = Command::new(std::env::current_exe().expect("a program"));
    let output = process.args([network, training, mode]).output();
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers.as_slice() {
        [at_rest, peak, time] => Measured {
            at_rest: *at_rest,
            peak: *peak,
            time: *time,
        },
        _ => panic!(
            "{network}, {training}, {mode}: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

fn measure(network: &str, fused: bool, mode: Mode) -> Measured {
    keep_pages();
    let device = Device::flex().autodiff();
    if network == NETWORKS[0] {
        let input = Tensor::<2>::random([16, 1024], Distribution::Default, &device);
        let input = mode.input(input);
        let model = || mode.cast(Mlp::of_size(12, 1024, &device));
        return train(model, mode, fused, |model| model.loss(input.clone()));
    }
    let config = TransformerConfig::new(64).with_dropout(0.0);
    let uniform = Distribution::Uniform(0.0, VOCABULARY as f64);
    let text = Tensor::<2, Int>::random([4, 65], uniform, &device.clone().inner());
    let model = || mode.cast(config.init(&device));
    train(model, mode, fused, |model: &Transformer| {
        model.loss(text.clone())
    })
}

/// Trains the model that `init` creates.
fn train<M: Module>(
    init: impl FnOnce() -> M,
    mode: Mode,
    fused: bool,
    loss: impl Fn(&M) -> Tensor<1>,
) -> Measured {
    let before = BYTES.current_usage();
    let model = init();
    let parameters = model.num_params() as f64;
    let mut optimizer = mode.optimizer();
    let mut step: Box<dyn FnMut()> = match fused {
        true => {
            let mut fused = FusedOptimizer::new(model, optimizer)
                .unwrap()
                .with_config(mode.config())
                .unwrap();
            Box::new(move || drop(fused.step(RATE, |model| loss(model)).unwrap()))
        }
        false => {
            let mut model = Some(model);
            Box::new(move || {
                let current = model.take().expect("the step before has put it back");
                let gradients = loss(&current).backward();
                let gradients = GradientsParams::from_grads(gradients, &current);
                model = Some(optimizer.step(RATE, current, gradients));
            })
        }
    };
    step();
    BYTES.reset_peak_usage();
    let mut fastest = f64::INFINITY;
    for _ in 0..STEPS {
        let started = Instant::now();
        step();
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    let peak = (BYTES.peak_usage() - before) as f64;
    let after = BYTES.current_usage();
    // Drops model and optimizer; the caches of threads remain.
    drop(step);
    Measured {
        at_rest: (after - BYTES.current_usage()) as f64 / parameters,
        peak: peak / (4.0 * parameters),
        time: fastest,
    }
}
