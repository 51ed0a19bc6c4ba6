//! Memory and time of a step of a language model with 0.96 billion parameters, by technique and in stock Burn.
//!
//! ```sh
//! cargo bench --bench language_model                   # both vocabularies; hours on two cores
//! cargo bench --bench language_model -- 50257 chunked  # the rows with all of these words
//! cargo bench --bench language_model -- context      # the longest context within 300 MB, whole and in tiles
//! cargo bench --bench language_model -- pytorch      # a smaller model, compared with PyTorch
//! cargo bench --bench language_model -- check          # accuracy of estimates from fewer layers, at a smaller size
//! ```
//!
//! Every row trains the model `billion` of the example `text` for two steps of one piece of 2,048 tokens of GPT-2, in a
//! separate process: the peak of the allocated bytes, the time of the second step, and the losses of both. Rows that do not fit in
//! 24 GB are estimated (*), with the memory of a layer from the difference between five and three layers. With a vocabulary of 30,000
//! the rarer tokens are mapped into it.
//!
//! `pytorch` trains the preset `medium` on one piece of 512 tokens, in f32, in Burn and in PyTorch, from the same weights, which the losses
//! of the first and of the third step show. The chunked loss recomputes its logits in PyTorch, and computes its gradient in the forward
//! pass in Burn. It needs a `python3` with PyTorch (`pip install torch`); without, its rows say so.
//! *allocated* is the peak of the bytes in multiples of the parameters' bytes P: in Burn all allocations of the program, in PyTorch
//! those of tensors. *resident* is the peak of the resident memory over that before the model. For the time each variant takes turns
//! with stock Burn, a step each.

mod context;
#[allow(dead_code)] // A part of an example.
#[path = "../../examples/text/model/mod.rs"]
mod model;
mod pytorch;
mod training;
#[path = "../turns/mod.rs"]
mod turns;
mod variant;

use std::process::Command;

use backburn::memory::RecordingAllocator;
use peak_alloc::PeakAlloc;

use model::Preset;
use variant::{FUSED, STOCK, VARIANTS, Variant};

static BYTES: PeakAlloc = PeakAlloc;

#[global_allocator]
static ALLOCATOR: RecordingAllocator<PeakAlloc> = RecordingAllocator::over(PeakAlloc);

const VOCABULARIES: [usize; 2] = [30_000, 50_257];
/// Depths that fit without recomputed blocks.
const FEWER_LAYERS: [usize; 2] = [3, 5];

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
        ["train", preset, vocabulary, depth, variant] => {
            let number = |text: &str| text.parse::<usize>().expect("a number");
            let variant = Variant::named(variant);
            let config = preset_named(preset).config(number(vocabulary));
            let config = variant.config(config.with_depth(number(depth)));
            training::train(&variant, &config);
        }
        ["in-context", context, tile] => {
            let [context, tile] = [context, tile].map(|text| text.parse().expect("a number"));
            context::train(context, tile);
        }
        ["worker", task, variant] => pytorch::train(task, variant),
        ["pytorch"] => pytorch::table(),
        ["check"] => check(),
        ["context"] => context::longest(),
        words => table(words),
    }
}

fn preset_named(name: &str) -> Preset {
    match name {
        "medium" => Preset::Medium,
        "billion" => Preset::Billion,
        other => panic!("there is no preset {other}"),
    }
}

/// Returns the numbers that a separate process prints for a row.
fn numbers<const N: usize>(
    task: &str,
    preset: &str,
    vocabulary: usize,
    depth: usize,
    variant: &Variant,
) -> [f64; N] {
    let (vocabulary, depth) = (vocabulary.to_string(), depth.to_string());
    printed(&[task, preset, &vocabulary, &depth, variant.name])
}

/// Returns the numbers that this benchmark prints with these arguments, in a separate process.
fn printed<const N: usize>(arguments: &[&str]) -> [f64; N] {
    let mut this = Command::new(std::env::current_exe().expect("a program"));
    numbers_of(this.args(arguments)).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Returns the numbers that a program prints, or the reason of its failure.
fn numbers_of<const N: usize>(program: &mut Command) -> Result<[f64; N], String> {
    let output = program.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.split_whitespace().map(|number| number.parse().ok());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.filter(|_| output.status.success());
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

struct Measured {
    parameters: f64,
    peak: f64,
    seconds: f64,
    first: f64,
    last: f64,
}

fn measure(preset: &str, vocabulary: usize, depth: usize, variant: &Variant) -> Measured {
    let [parameters, peak, seconds, first, last] =
        numbers("train", preset, vocabulary, depth, variant);
    Measured {
        parameters,
        peak,
        seconds,
        first,
        last,
    }
}

/// Extrapolates the peak at `depth` from the peaks at fewer layers.
fn extrapolate(preset: &str, vocabulary: usize, depth: usize, variant: &Variant) -> f64 {
    let [few, more] = FEWER_LAYERS.map(|depth| measure(preset, vocabulary, depth, variant).peak);
    let layer = (more - few) / (FEWER_LAYERS[1] - FEWER_LAYERS[0]) as f64;
    few + (depth - FEWER_LAYERS[0]) as f64 * layer
}

/// Returns the rows that have all of `words`.
fn rows(words: &[&str]) -> impl Iterator<Item = (usize, Variant)> {
    let all = VOCABULARIES
        .into_iter()
        .flat_map(|vocabulary| VARIANTS.map(|variant| (vocabulary, variant)));
    all.filter(|(vocabulary, variant)| {
        let name = vocabulary.to_string();
        words
            .iter()
            .all(|word| *word == name || *word == variant.name)
    })
}

fn table(words: &[&str]) {
    println!(
        "{:<12}{:<24}{:>10}{:>12}{:>12}{:>16}",
        "vocabulary", "", "GB", "bytes / P", "s a step", "loss"
    );
    let depth = Preset::Billion.config(1).depth;
    for (vocabulary, variant) in rows(words) {
        print!("{vocabulary:<12}{:<24}", variant.name);
        if !variant.fits() {
            let peak = extrapolate("billion", vocabulary, depth, &variant);
            println!("{:>9.2}*", peak / 1e9);
            continue;
        }
        let row = measure("billion", vocabulary, depth, &variant);
        println!(
            "{:>10.2}{:>12.2}{:>12.1}{:>16}",
            row.peak / 1e9,
            row.peak / row.parameters,
            row.seconds,
            format!("{:.2} -> {:.2}", row.first, row.last)
        );
    }
}

/// Compares extrapolated and measured peaks at the size `medium`, which stock Burn can train.
fn check() {
    println!(
        "{:<24}{:>14}{:>14}{:>10}",
        "", "estimated GB", "measured GB", "ratio"
    );
    let config = Preset::Medium.config(50_257);
    for variant in [STOCK, FUSED] {
        let estimated = extrapolate("medium", config.vocabulary, config.depth, &variant);
        let measured = measure("medium", config.vocabulary, config.depth, &variant).peak;
        println!(
            "{:<24}{:>14.3}{:>14.3}{:>10.3}",
            variant.name,
            estimated / 1e9,
            measured / 1e9,
            estimated / measured
        );
    }
}
