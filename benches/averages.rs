//! Cost of an average of the weights, compared with a manual one: bytes, and the time of a step.
//!
//! ```sh
//! cargo bench --bench averages
//! cargo bench --bench averages -- --no-times # the bytes alone
//! ```
//!
//! Every row trains an MLP of 12 x (512, 2048) with AdamW of `backburn::optim` and a batch of 16, in f32. `by hand` keeps a second model and
//! updates it after each step, in stock Burn and in fused training. There it drops the model before the next step, since every update
//! would be a copy otherwise.
//! Each variant runs in a separate process, and they take turns.
//!
//! `at rest` and `peak` are bytes in multiples of the parameters' (P), `time` the median time of a step in multiples of fused training
//! without an average, `copied` the parameters that the last step has copied.

mod network;
mod turns;

use std::collections::HashMap;

use backburn::memory::keep_pages;
use backburn::optim::AdamWConfig;
use backburn::{FusedConfig, FusedOptimizer, WeightAveragingConfig};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::Distribution;
use peak_alloc::PeakAlloc;

use network::{Mlp, Network};
use turns::{Rounds, TURNS, Worker};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const RATE: f64 = 1e-4;
const DECAY: f64 = 0.999;
const ROUNDS: usize = 15;
const STEPS: usize = 3;
const VARIANTS: [&str; 6] = [
    "fused, none",
    "stock, none",
    "stock, by hand",
    "fused, by hand",
    "fused",
    "fused, every 10th",
];
const BYTES_OF: &str = "--bytes";
const NO_TIMES: &str = "--no-times";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments = arguments.iter().map(String::as_str);
    let (options, words): (Vec<_>, Vec<_>) = arguments.partition(|a| a.starts_with('-'));
    match words[..] {
        [variant] if options.contains(&TURNS) => {
            keep_pages();
            turns::train(training(variant))
        }
        [variant] if options.contains(&BYTES_OF) => print_bytes(variant),
        _ => print_table(!options.contains(&NO_TIMES)),
    }
}

fn print_table(times: bool) {
    println!(
        "{:<30}{:>9}{:>8}{:>8}{:>8}",
        "", "at rest", "peak", "copied", "time"
    );
    let rounds = times.then(|| {
        let workers = VARIANTS.map(|variant| Worker::start(&[variant]));
        Rounds::of(workers.into(), ROUNDS)
    });
    for (index, variant) in VARIANTS.into_iter().enumerate() {
        let [rest, peak, copied] = turns::numbers(&[BYTES_OF, variant]);
        let time = rounds.as_ref().map(|rounds| rounds.ratio(index, 0, 0.5));
        let time = time.map(|time| format!("{time:.2}")).unwrap_or_default();
        println!("{variant:<30}{rest:>9.2}{peak:>8.2}{copied:>8}{time:>8}");
    }
}

/// Prints the bytes, in the measured process.
fn print_bytes(variant: &str) {
    let before = BYTES.current_usage();
    let mut train = training(variant);
    let mut copied = 0;
    for _ in 0..STEPS {
        BYTES.reset_peak_usage();
        copied = train();
    }
    let (held, peak) = (BYTES.current_usage() - before, BYTES.peak_usage() - before);
    let all = 4 * Mlp::init(&Device::flex()).num_params();
    println!("{}", held as f64 / all as f64);
    println!("{}", peak as f64 / all as f64);
    println!("{copied}");
}

/// Returns a function that makes one step, and returns the parameters that it has copied, if known.
fn training(variant: &str) -> Box<dyn FnMut() -> usize> {
    let device = Device::flex().autodiff();
    device.seed(42);
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = Mlp::init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let mut mean = None;
    if variant.starts_with("stock") {
        let averages = variant.ends_with("by hand");
        let mut model = Some(model);
        return Box::new(move || {
            let current = model.take().expect("there is one between steps");
            let gradients = current.loss(input.clone()).backward();
            let gradients = GradientsParams::from_grads(gradients, &current);
            let current = optimizer.step(RATE, current, gradients);
            if averages {
                mean = Some(moved(mean.take(), &current));
            }
            model = Some(current);
            0
        });
    }
    let average = WeightAveragingConfig::new().with_decay(Some(DECAY));
    let averaging = match variant {
        "fused, none" | "fused, by hand" => None,
        "fused, every 10th" => Some(average.with_every(10)),
        _ => Some(average),
    };
    let config = FusedConfig::new().with_averaging(averaging);
    let averages = variant.ends_with("by hand");
    let mut fused = FusedOptimizer::new(model, optimizer)
        .unwrap()
        .with_config(config)
        .unwrap();
    Box::new(move || {
        fused.step(RATE, |model| model.loss(input.clone())).unwrap();
        if averages {
            mean = Some(moved(mean.take(), &fused.model()));
        }
        fused.last_step().copied.unwrap_or_default()
    })
}

/// Updates the average with `model`, as a manual loop does it. The first average is a copy.
fn moved(mean: Option<Mlp>, model: &Mlp) -> Mlp {
    let mut values = Values::default();
    model.visit(&mut values);
    let is_first = mean.is_none();
    mean.unwrap_or_else(|| model.clone())
        .map(&mut Next { values, is_first })
}

#[derive(Default)]
struct Values(HashMap<ParamId, Tensor<1>>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val().inner().flatten(0, D - 1);
        self.0.insert(param.id, value);
    }
}

struct Next {
    values: Values,
    is_first: bool,
}

impl ModuleMapper for Next {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.values.0.remove(&param.id).expect("it is in both");
        let is_first = self.is_first;
        param.map(|mean| {
            let shape = mean.shape();
            let value = value.reshape(shape);
            Tensor::from_inner(match is_first {
                true => value.mul_scalar(1.0),
                false => mean.inner().mul_scalar(DECAY) + value.mul_scalar(1.0 - DECAY),
            })
        })
    }
}
