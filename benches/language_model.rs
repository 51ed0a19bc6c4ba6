//! A language model of 0.96 billion parameters: memory and time of a step by technique, beside stock Burn.
//!
//! ```sh
//! cargo bench --bench language_model                   # both vocabularies; hours on two cores
//! cargo bench --bench language_model -- 50257 chunked  # the rows with all of these words
//! cargo bench --bench language_model -- check          # what estimates are worth, at a smaller size
//! ```
//!
//! Every row trains the model `billion` of the example `text` for two steps of one piece of 2,048 tokens of GPT-2, in a process of its
//! own: the most bytes allocated at once, the time of the second step, and the losses of both. Rows that a machine of 24 GB has no room
//! for are estimated (*): each needs as much more for a layer as it needs for the fourth and the fifth beside three. With a vocabulary
//! of 30,000 the rarer tokens are folded into it.

#[allow(dead_code)] // A part of an example.
#[path = "../examples/text/model/mod.rs"]
mod model;

use std::process::Command;
use std::time::Instant;

use backburn::FusedOptimizer;
use backburn::memory::keep_pages;
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::{FloatDType, TensorData};
use flate2::read::GzDecoder;
use peak_alloc::PeakAlloc;
use tiktoken_rs::r50k_base_singleton;

use model::{LanguageModel, LanguageModelConfig, Preset};

#[global_allocator]
static BYTES: PeakAlloc = PeakAlloc;

const PLAYS: &[u8] = include_bytes!("../examples/text/data/shakespeare.txt.gz");
const VOCABULARIES: [usize; 2] = [30_000, 50_257];
const LEARNING_RATE: f64 = 1e-4;
/// Depths that there is room for without blocks that run twice.
const FEWER_LAYERS: [usize; 2] = [3, 5];

/// A way to train.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    fused: bool,
    blocks: bool,
    chunked: bool,
    weights: Option<WeightFormat>,
    states: StateFormat,
}

const STOCK: Way = Way {
    name: "stock",
    fused: false,
    blocks: false,
    chunked: false,
    weights: None,
    states: StateFormat::Full,
};
const CHUNKED: Way = Way {
    name: "chunked",
    fused: true,
    blocks: true,
    chunked: true,
    ..STOCK
};

fn ways() -> Vec<Way> {
    let format = |name, weights, states| Way {
        name,
        weights,
        states,
        ..CHUNKED
    };
    vec![
        STOCK,
        Way {
            name: "fused",
            fused: true,
            ..STOCK
        },
        Way {
            name: "blocks",
            chunked: false,
            ..CHUNKED
        },
        CHUNKED,
        format("chunked-8", None, StateFormat::Bits8),
        format(
            "chunked-split24-8",
            Some(WeightFormat::Split24),
            StateFormat::Bits8,
        ),
        format(
            "chunked-stochastic-8",
            Some(WeightFormat::Stochastic),
            StateFormat::Bits8,
        ),
        format(
            "chunked-stochastic-4",
            Some(WeightFormat::Stochastic),
            StateFormat::Bits4,
        ),
    ]
}

impl Way {
    /// Whether a machine of 24 GB has room for it at the size `billion`: that for the activations of all layers is not there.
    fn fits(&self) -> bool {
        self.blocks
    }

    fn applied_to(&self, config: LanguageModelConfig) -> LanguageModelConfig {
        config
            .with_recompute_layers(self.blocks)
            .with_chunk_size(self.chunked.then_some(256))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["train", preset, vocabulary, depth, way] => train(preset, vocabulary, depth, way),
        ["check"] => check(),
        words => table(words),
    }
}

/// What a process of its own has measured.
struct Measured {
    parameters: f64,
    peak: f64,
    seconds: f64,
    first: f64,
    last: f64,
}

fn measure(preset: &str, vocabulary: usize, depth: usize, way: &Way) -> Measured {
    let mut process = Command::new(std::env::current_exe().expect("a program"));
    let arguments = [
        preset,
        &vocabulary.to_string(),
        &depth.to_string(),
        way.name,
    ];
    let output = process
        .arg("train")
        .args(arguments)
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}: {}",
        way.name,
        String::from_utf8_lossy(&output.stderr)
    );
    let output = String::from_utf8(output.stdout).expect("numbers");
    let numbers: Vec<f64> = output
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    let [parameters, peak, seconds, first, last] = numbers[..] else {
        panic!("{output}");
    };
    Measured {
        parameters,
        peak,
        seconds,
        first,
        last,
    }
}

/// The peak at `depth`, from those at fewer layers.
fn estimate(preset: &str, vocabulary: usize, depth: usize, way: &Way) -> f64 {
    let [few, more] = FEWER_LAYERS.map(|depth| measure(preset, vocabulary, depth, way).peak);
    let layer = (more - few) / (FEWER_LAYERS[1] - FEWER_LAYERS[0]) as f64;
    few + (depth - FEWER_LAYERS[0]) as f64 * layer
}

fn table(words: &[&str]) {
    println!(
        "{:<12}{:<24}{:>10}{:>12}{:>12}{:>16}",
        "vocabulary", "", "GB", "bytes / P", "s a step", "loss"
    );
    let depth = Preset::Billion.config(1).depth;
    for vocabulary in VOCABULARIES {
        for way in ways() {
            let name = vocabulary.to_string();
            if !words.iter().all(|word| *word == name || *word == way.name) {
                continue;
            }
            print!("{vocabulary:<12}{:<24}", way.name);
            if !way.fits() {
                let peak = estimate("billion", vocabulary, depth, &way);
                println!("{:>9.2}*{:>12}{:>12}{:>16}", peak / 1e9, "", "", "");
                continue;
            }
            let row = measure("billion", vocabulary, depth, &way);
            println!(
                "{:>10.2}{:>12.2}{:>12.1}{:>16}",
                row.peak / 1e9,
                row.peak / row.parameters,
                row.seconds,
                format!("{:.2} -> {:.2}", row.first, row.last)
            );
        }
    }
}

/// Estimated and measured peaks at the size `medium`, which stock Burn has room for.
fn check() {
    println!(
        "{:<24}{:>14}{:>14}{:>10}",
        "", "estimated GB", "measured GB", "ratio"
    );
    let config = Preset::Medium.config(50_257);
    for way in ways().iter().filter(|way| !way.fits()) {
        let estimated = estimate("medium", config.vocabulary, config.depth, way);
        let measured = measure("medium", config.vocabulary, config.depth, way).peak;
        println!(
            "{:<24}{:>14.3}{:>14.3}{:>10.3}",
            way.name,
            estimated / 1e9,
            measured / 1e9,
            estimated / measured
        );
    }
}

/// Trains in this process, and prints what [`Measured`] holds.
fn train(preset: &str, vocabulary: &str, depth: &str, way: &str) {
    keep_pages();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let preset = match preset {
        "medium" => Preset::Medium,
        "billion" => Preset::Billion,
        other => panic!("there is no preset {other}"),
    };
    let ways = ways();
    let way = ways.iter().find(|known| known.name == way).expect("a way");
    let config = preset.config(number(vocabulary)).with_depth(number(depth));
    let config = way.applied_to(config);
    let device = Device::flex().autodiff();
    let text = text(&config, &device);
    device.seed(1);
    let model = config.init(&device);
    let model = match way.weights {
        Some(_) => backburn::cast(model, FloatDType::BF16),
        None => model,
    };
    let parameters = model.num_params();
    let mut losses = Vec::new();
    let mut seconds = 0.0;
    let mut step = steps(model, way, text);
    for _ in 0..2 {
        let begun = Instant::now();
        losses.push(step().into_scalar::<f64>());
        seconds = begun.elapsed().as_secs_f64();
    }
    let peak = BYTES.peak_usage();
    println!("{parameters} {peak} {seconds} {} {}", losses[0], losses[1]);
}

fn steps(model: LanguageModel, way: &Way, text: Tensor<2, Int>) -> Box<dyn FnMut() -> Tensor<1>> {
    if !way.fused {
        let mut optimizer = burn::optim::AdamWConfig::new().init();
        let mut model = Some(model);
        return Box::new(move || {
            let current = model.take().expect("the step before has put it back");
            let losses = current.losses(text.clone());
            let gradients = GradientsParams::from_grads(losses.total.backward(), &current);
            model = Some(optimizer.step(LEARNING_RATE, current, gradients));
            losses.cross_entropy
        });
    }
    let optimizer = match (way.weights, way.states) {
        (None, StateFormat::Full) => burn::optim::AdamWConfig::new().init(),
        (weights, states) => AdamWConfig::new()
            .with_state_format(states)
            .with_weight_format(weights.unwrap_or(WeightFormat::Plain))
            .init(),
    };
    let mut fused = FusedOptimizer::new(model, optimizer);
    Box::new(move || {
        let losses = |model: &LanguageModel| {
            let losses = model.losses(text.clone());
            (losses.total, losses.cross_entropy)
        };
        fused.step(LEARNING_RATE, losses).1
    })
}

/// The first piece of the plays. Shape: `[1, context + 1]`.
fn text(config: &LanguageModelConfig, device: &Device) -> Tensor<2, Int> {
    let plays = std::io::read_to_string(GzDecoder::new(PLAYS)).expect("it is a text");
    let length = config.context + 1;
    let tokens = r50k_base_singleton().encode_ordinary(&plays);
    let folded = tokens
        .iter()
        .map(|token| *token as i32 % config.vocabulary as i32);
    let folded: Vec<i32> = folded.take(length).collect();
    Tensor::from_data(TensorData::new(folded, [1, length]), device)
}
