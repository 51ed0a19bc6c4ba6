//! An average of the weights beside the same by hand: bytes, and the time of a step.
//!
//! ```sh
//! cargo bench --bench averages
//! cargo bench --bench averages -- --no-times # the bytes alone
//! ```
//!
//! Every row trains an MLP of 12 x (512, 2048) with AdamW of `backburn::optim` and a batch of 16, in f32. `by hand` keeps a second model and
//! moves it after each step, in stock Burn and beside fused training, where it lets go of the model before the next step: every update
//! would be a copy.
//! Each way runs in a process of its own, and they take turns.
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
use turns::{Rounds, TURNS, Way};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const RATE: f64 = 1e-4;
const DECAY: f64 = 0.999;
const ROUNDS: usize = 15;
const STEPS: usize = 3;
const WAYS: [&str; 6] = [
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
        [way] if options.contains(&TURNS) => {
            keep_pages();
            turns::train(training(way))
        }
        [way] if options.contains(&BYTES_OF) => print_bytes(way),
        _ => print_table(!options.contains(&NO_TIMES)),
    }
}

fn print_table(times: bool) {
    println!(
        "{:<30}{:>9}{:>8}{:>8}{:>8}",
        "", "at rest", "peak", "copied", "time"
    );
    let rounds = times.then(|| {
        let ways = WAYS.map(|way| Way::start(&[way]));
        Rounds::of(ways.into(), ROUNDS)
    });
    for (index, way) in WAYS.into_iter().enumerate() {
        let [rest, peak, copied] = turns::numbers(&[BYTES_OF, way]);
        let time = rounds.as_ref().map(|rounds| rounds.ratio(index, 0, 0.5));
        let time = time.map(|time| format!("{time:.2}")).unwrap_or_default();
        println!("{way:<30}{rest:>9.2}{peak:>8.2}{copied:>8}{time:>8}");
    }
}

/// The side of the process that is asked for bytes.
fn print_bytes(way: &str) {
    let before = BYTES.current_usage();
    let mut train = training(way);
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

/// Makes one step at every call, and returns the parameters that it has copied, if that is told.
fn training(way: &str) -> Box<dyn FnMut() -> usize> {
    let device = Device::flex().autodiff();
    device.seed(42);
    let input = Tensor::<2>::random([16, 512], Distribution::Default, &device);
    let model = Mlp::init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let mut mean = None;
    if way.starts_with("stock") {
        let averages = way.ends_with("by hand");
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
    let averaging = match way {
        "fused, none" | "fused, by hand" => None,
        "fused, every 10th" => Some(average.with_every(10)),
        _ => Some(average),
    };
    let config = FusedConfig::new().with_averaging(averaging);
    let averages = way.ends_with("by hand");
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

/// The average taken on to `model`, as a loop by hand does it; the first is a model of its own.
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
