//! One step of an optimizer on a single large parameter: Burn's and ours.
//!
//! ```sh
//! cargo bench --bench optimizer
//! cargo bench --bench optimizer -- 100000000   # elements of the parameter
//! ```
//!
//! Every row steps a parameter of 25 million elements, with Burn's optimizer in f32 and ours in turn, and
//! prints the median times, the speedup of ours, nanoseconds per element, this relative to our AdamW in f32
//! and to the speed of a copy, both measured in the same rounds, and the peak of the bytes allocated during a
//! step, in multiples of the parameter's in f32. A single pass of AdamW moves 28 bytes per element: it reads
//! gradient, parameter and two states, and writes all but the gradient. The heap keeps its pages (`backburn::memory::keep_pages()`):
//! otherwise Burn's optimizers, which allocate for each operation, would spend most of their time on new pages.
//!
//! Then it prints the time of PyTorch's AdamW in multiples of ours, in turn with it, if `python3`, or `$PYTHON`, has the package
//! `torch`.

#[path = "turns/mod.rs"]
mod turns;

use std::process::Stdio;
use std::time::Instant;

use backburn::memory::keep_pages;
use backburn::optim::{self as ours, StateFormat, WeightFormat};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{self as stock, Optimizer};
use burn::prelude::*;
use burn::tensor::{Distribution, FloatDType};
use peak_alloc::PeakAlloc;
use rayon::prelude::*;
use turns::{Worker, median};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const ROUNDS: usize = 15;
const LEARNING_RATE: f64 = 1e-3;

fn main() {
    keep_pages(); // before any update, and as in `step`
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let elements = arguments.next().map_or(25_000_000, |elements| {
        elements.parse().expect("the number of elements")
    });
    println!(
        "{elements} elements, {} threads",
        rayon::current_num_threads()
    );
    println!(
        "{:<22}{:>10}{:>10}{:>8}{:>10}{:>10}{:>8}{:>8}{:>12}{:>10}{:>12}{:>12}",
        "",
        "Burn (ms)",
        "ours (ms)",
        "times",
        "ns/elem",
        "of AdamW",
        "B/elem",
        "GB/s",
        "copy (GB/s)",
        "of copy",
        "Burn alloc",
        "ours alloc"
    );
    let row = Row { elements };
    let burns = || stock::AdamWConfig::new().build();
    let adamw = ours::AdamWConfig::new;
    row.print("AdamW", 28.0, burns(), adamw().build(), FloatDType::F32);
    // Compared with Burn's in f32. A state takes 17 bytes for 16 elements.
    let in_bits = |bits| adamw().with_state_format(bits);
    let (eight, four) = (|| in_bits(StateFormat::Bits8), in_bits(StateFormat::Bits4));
    row.print(
        "AdamW, 8 bits",
        16.25,
        burns(),
        eight().build(),
        FloatDType::F32,
    );
    row.print(
        "AdamW, 4 bits",
        14.25,
        burns(),
        four.build(),
        FloatDType::F32,
    );
    // Weights and gradient in bf16, and a checksum of 4 bytes for 64 weights.
    let formats = [
        ("Stochastic, 8 bits", 10.25, WeightFormat::Stochastic),
        ("Split24, 8 bits", 12.375, WeightFormat::Split24),
    ];
    for (name, bytes, format) in formats {
        let ours = eight().with_weight_format(format).build();
        row.print(
            &format!("AdamW, {name}"),
            bytes,
            burns(),
            ours,
            FloatDType::BF16,
        );
    }
    row.print(
        "AdamW, AMSGrad",
        36.0,
        stock::AdamWConfig::new().with_amsgrad(true).build(),
        adamw().with_amsgrad(true).build(),
        FloatDType::F32,
    );
    row.print(
        "Adam",
        28.0,
        stock::AdamConfig::new().build(),
        ours::AdamConfig::new().build(),
        FloatDType::F32,
    );
    let momentum = Some(MomentumConfig::new());
    row.print(
        "SGD, momentum",
        20.0,
        stock::SgdConfig::new()
            .with_momentum(momentum.clone())
            .build(),
        ours::SgdConfig::new().with_momentum(momentum).build(),
        FloatDType::F32,
    );
    row.print(
        "SGD",
        12.0,
        stock::SgdConfig::new().build(),
        ours::SgdConfig::new().build(),
        FloatDType::F32,
    );
    row.print(
        "Lion",
        20.0,
        stock::LionConfig::new().build(),
        ours::LionConfig::new().build(),
        FloatDType::F32,
    );
    let mut imports = turns::pytorch("-c");
    let imports = imports.arg("import torch").stderr(Stdio::null());
    match imports.status() {
        Ok(status) if status.success() => {
            row.print_pytorch("foreach");
            row.print_pytorch("fused");
        }
        _ => println!("`python3`, or `$PYTHON`, has no torch"),
    }
}

struct Row {
    elements: usize,
}

impl Row {
    /// Prints a row of our optimizer for a parameter of this type. A step moves at least `bytes` for each element.
    fn print(
        &self,
        name: &str,
        bytes: f64,
        burns: impl Optimizer,
        ours: impl Optimizer,
        dtype: FloatDType,
    ) {
        let elements = self.elements;
        let mut burns = Stepped::new(burns, elements, FloatDType::F32);
        let mut ours = Stepped::new(ours, elements, dtype);
        let adamw = ours::AdamWConfig::new().build();
        let mut adamw = Stepped::new(adamw, elements, FloatDType::F32);
        let from = vec![1f32; elements];
        let mut to = vec![0f32; elements];

        let round = |_| {
            [
                burns.step(),
                ours.step(),
                adamw.step(),
                copy(&from, &mut to),
            ]
        };
        let rounds: Vec<[f64; 4]> = (0..ROUNDS).map(round).collect();
        let time = |variant: usize| median(rounds.iter().map(|times| times[variant]));
        let times = |a: usize, b: usize| median(rounds.iter().map(|times| times[a] / times[b]));
        let speed = |bytes: f64, time: f64| bytes * elements as f64 / time / 1e9;
        let (moved, copied) = (speed(bytes, time(1)), speed(8.0, time(3)));
        println!(
            "{name:<22}{:>10.1}{:>10.1}{:>8.1}{:>10.2}{:>10.2}{bytes:>8.1}{moved:>8.1}{copied:>12.1}{:>10.2}{:>12.3}{:>12.3}",
            1e3 * time(0),
            1e3 * time(1),
            times(0, 1),
            1e9 * time(1) / elements as f64,
            times(1, 2),
            moved / copied,
            burns.allocated as f64 / (4 * elements) as f64,
            ours.allocated as f64 / (4 * elements) as f64,
        );
    }
}

impl Row {
    /// Prints the time of PyTorch's AdamW with this option, beside ours.
    fn print_pytorch(&self, way: &str) {
        const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pytorch/optimizer.py");
        let (elements, threads) = (self.elements, rayon::current_num_threads());
        let mut program = turns::pytorch(PROGRAM);
        program.args([way, &elements.to_string(), &threads.to_string()]);
        let mut pytorch = Worker::of(program);
        let adamw = ours::AdamWConfig::new().build();
        let mut adamw = Stepped::new(adamw, elements, FloatDType::F32);
        let rounds: Vec<[f64; 2]> = (0..ROUNDS)
            .map(|_| [pytorch.step(), adamw.step()])
            .collect();
        println!(
            "PyTorch's AdamW({way}=True): {:.1} ms, ours {:.1}, times {:.2}",
            1e3 * median(rounds.iter().map(|times| times[0])),
            1e3 * median(rounds.iter().map(|times| times[1])),
            median(rounds.iter().map(|times| times[0] / times[1])),
        );
    }
}

/// An optimizer with its parameter and state.
struct Stepped<O: Optimizer> {
    optimizer: O,
    parameter: Tensor<1>,
    state: Option<O::State<1>>,
    /// Peak of the bytes allocated during a step.
    allocated: usize,
}

impl<O: Optimizer> Stepped<O> {
    fn new(optimizer: O, elements: usize, dtype: FloatDType) -> Self {
        let parameter: Tensor<1> =
            Tensor::random([elements], Distribution::Default, &Device::flex());
        let mut stepped = Self {
            optimizer,
            parameter: parameter.cast(dtype),
            state: None,
            allocated: 0,
        };
        // The first step creates the state.
        stepped.step();
        stepped.allocated = 0;
        stepped
    }

    /// Makes a step. Returns its seconds.
    fn step(&mut self) -> f64 {
        let parameter = std::mem::replace(&mut self.parameter, Tensor::empty([0], &Device::flex()));
        let options = (&parameter.device(), parameter.dtype());
        let gradient = Tensor::ones(parameter.shape(), options);
        let state = self.state.take();
        let before = BYTES.current_usage();
        BYTES.reset_peak_usage();
        let start = Instant::now();
        let (parameter, state) = self
            .optimizer
            .step(LEARNING_RATE, parameter, gradient, state);
        let time = start.elapsed().as_secs_f64();
        self.allocated = self.allocated.max(BYTES.peak_usage() - before);
        (self.parameter, self.state) = (parameter, state);
        time
    }
}

/// Copies on all threads. Returns the seconds.
fn copy(from: &[f32], to: &mut [f32]) -> f64 {
    let start = Instant::now();
    let part = from.len().div_ceil(rayon::current_num_threads());
    let parts = from.par_chunks(part).zip(to.par_chunks_mut(part));
    parts.for_each(|(from, to)| to.copy_from_slice(from));
    start.elapsed().as_secs_f64()
}
