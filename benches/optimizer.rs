//! One step of an optimizer on a single large parameter: Burn's and ours.
//!
//! ```sh
//! cargo bench --bench optimizer
//! cargo bench --bench optimizer -- 100000000   # elements of the parameter
//! ```
//!
//! Every row steps a parameter of 25 million f32 elements, with Burn's optimizer and ours in turn, and
//! prints the median times, how many times faster ours is, the bytes that a single pass has to move
//! per second (of AdamW 28 an element: gradient, parameter and two states are read, all but the
//! gradient written), that in parts of a copy measured in the same rounds, and the most bytes allocated
//! during a step, in multiples of the parameter's.

use std::time::Instant;

use backburn::optim as ours;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{self as stock, Optimizer};
use burn::prelude::*;
use burn::tensor::Distribution;
use peak_alloc::PeakAlloc;
use rayon::prelude::*;

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const ROUNDS: usize = 15;
const LEARNING_RATE: f64 = 1e-3;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let elements = arguments.next().map_or(25_000_000, |elements| {
        elements.parse().expect("the number of elements")
    });
    println!(
        "{elements} elements, {} threads",
        rayon::current_num_threads()
    );
    println!(
        "{:<18}{:>10}{:>10}{:>10}{:>8}{:>8}{:>12}{:>10}{:>12}{:>12}",
        "",
        "Burn (ms)",
        "ours (ms)",
        "times",
        "B/elem",
        "GB/s",
        "copy (GB/s)",
        "of copy",
        "Burn alloc",
        "ours alloc"
    );
    row(
        "AdamW",
        28,
        stock::AdamWConfig::new().build(),
        ours::AdamWConfig::new().build(),
        elements,
    );
    // Against Burn's in f32. A state takes 17 bytes for 16 elements.
    row(
        "AdamW, 8 bits",
        16,
        stock::AdamWConfig::new().build(),
        ours::AdamWConfig::new()
            .with_state_format(ours::StateFormat::Bits8)
            .build(),
        elements,
    );
    row(
        "AdamW, AMSGrad",
        36,
        stock::AdamWConfig::new().with_amsgrad(true).build(),
        ours::AdamWConfig::new().with_amsgrad(true).build(),
        elements,
    );
    row(
        "Adam",
        28,
        stock::AdamConfig::new().build(),
        ours::AdamConfig::new().build(),
        elements,
    );
    let momentum = Some(MomentumConfig::new());
    row(
        "SGD, momentum",
        20,
        stock::SgdConfig::new()
            .with_momentum(momentum.clone())
            .build(),
        ours::SgdConfig::new().with_momentum(momentum).build(),
        elements,
    );
    row(
        "SGD",
        12,
        stock::SgdConfig::new().build(),
        ours::SgdConfig::new().build(),
        elements,
    );
    row(
        "Lion",
        20,
        stock::LionConfig::new().build(),
        ours::LionConfig::new().build(),
        elements,
    );
}

fn row(name: &str, bytes: usize, burns: impl Optimizer, ours: impl Optimizer, elements: usize) {
    let device = Device::flex();
    let mut burns = Stepped::new(burns, elements, &device);
    let mut ours = Stepped::new(ours, elements, &device);
    let from = vec![1f32; elements];
    let mut to = vec![0f32; elements];

    let rounds: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| [burns.step(), ours.step(), copy(&from, &mut to)])
        .collect();
    let time = |way: usize| median(rounds.iter().map(|times| times[way]));
    let times = median(rounds.iter().map(|times| times[0] / times[1]));
    let speed = |bytes: usize, time: f64| (bytes * elements) as f64 / time / 1e9;
    let (moved, copied) = (speed(bytes, time(1)), speed(8, time(2)));
    println!(
        "{name:<18}{:>10.1}{:>10.1}{times:>10.1}{bytes:>8}{moved:>8.1}{copied:>12.1}{:>10.2}{:>12.3}{:>12.3}",
        1e3 * time(0),
        1e3 * time(1),
        moved / copied,
        burns.allocated as f64 / (4 * elements) as f64,
        ours.allocated as f64 / (4 * elements) as f64,
    );
}

/// An optimizer with its parameter and state.
struct Stepped<O: Optimizer> {
    optimizer: O,
    parameter: Tensor<1>,
    state: Option<O::State<1>>,
    /// The most bytes allocated during a step.
    allocated: usize,
}

impl<O: Optimizer> Stepped<O> {
    fn new(optimizer: O, elements: usize, device: &Device) -> Self {
        let mut stepped = Self {
            optimizer,
            parameter: Tensor::random([elements], Distribution::Default, device),
            state: None,
            allocated: 0,
        };
        // The first step makes the state.
        stepped.step();
        stepped.allocated = 0;
        stepped
    }

    /// Seconds of a step.
    fn step(&mut self) -> f64 {
        let parameter = std::mem::replace(&mut self.parameter, Tensor::empty([0], &Device::flex()));
        let gradient = Tensor::ones(parameter.shape(), &parameter.device());
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

/// Seconds to copy, on all threads.
fn copy(from: &[f32], to: &mut [f32]) -> f64 {
    let start = Instant::now();
    let part = from.len().div_ceil(rayon::current_num_threads());
    let parts = from.par_chunks(part).zip(to.par_chunks_mut(part));
    parts.for_each(|(from, to)| to.copy_from_slice(from));
    start.elapsed().as_secs_f64()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
