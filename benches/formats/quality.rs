//! Quality of a transformer that is trained on a text in every mode.

use std::io::Read;

use backburn::FusedOptimizer;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::TensorData;
use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::mode::{LONG, MODES, Mode};
use crate::transformer::{Transformer, TransformerConfig};

const TEXT: &[u8] = include_bytes!("../../examples/text/data/shakespeare.txt.gz");
const SEEDS: u64 = 5;
const RATE: f64 = 2e-3;
const CONTEXT: usize = 32;
const BATCH: usize = 8;
const STEPS: usize = 800;
const LONG_STEPS: usize = 10 * STEPS;
const LONG_BATCH: usize = 2;
const FINE_TUNING_STEPS: usize = 200;
const FINE_TUNING_RATE: f64 = 1e-5;
/// Bytes at the end of the text that are held out.
const HELD_OUT: usize = 16_384;

/// Prints a table of trainings from scratch and of fine-tunings of a model that was trained in f32, for the modes with this in
/// their name.
pub fn print(part: &str) {
    let device = Device::flex().autodiff();
    let parts = Parts::read();
    let measured = |model: &Transformer| held_out(model, &parts.held_out);
    println!(
        "Bits per byte of a held-out text, mean and standard deviation of {SEEDS} seeds; the difference to"
    );
    println!("f32 is that of runs with the same seed.\n");
    println!("| | from scratch | difference | fine-tuned at {FINE_TUNING_RATE:e} | difference |");
    println!("|---|---:|---:|---:|---:|");
    let mut first: Option<[Vec<f64>; 2]> = None;
    let trained: Vec<Transformer> = (0..SEEDS)
        .map(|seed| from_scratch(MODES[0], seed, &parts.training, &device))
        .collect();
    let chosen = |mode: &Mode| {
        mode.is_of_stock() && (mode.name == MODES[0].name || mode.name.contains(part))
    };
    for mode in MODES.into_iter().filter(chosen) {
        let mut found = [Vec::new(), Vec::new()];
        for (seed, trained) in trained.iter().enumerate() {
            let seed = seed as u64;
            found[0].push(match mode.name == MODES[0].name {
                true => measured(trained),
                false => measured(&from_scratch(mode, seed, &parts.training, &device)),
            });
            let start = mode.cast(trained.clone());
            found[1].push(measured(&fine_tuned(mode, start, &parts.tuning, seed)));
        }
        let first = first.get_or_insert_with(|| found.clone());
        let cells = found.iter().zip(first.iter()).map(|(found, first)| {
            let differences: Vec<f64> = found.iter().zip(first).map(|(a, b)| a - b).collect();
            let (mean, deviation) = statistics(found);
            let (more, spread) = statistics(&differences);
            format!("{mean:.4} ± {deviation:.4} | {more:+.4} ± {spread:.4}")
        });
        println!(
            "| {} | {} |",
            mode.name,
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
}

/// Prints a table of trainings of ten times the steps, for the modes with this in their name. The model has one layer and a
/// batch two pieces, to limit the time.
pub fn print_long(part: &str) {
    let device = Device::flex().autodiff();
    let parts = Parts::read();
    println!("| {LONG_STEPS} steps | bits per byte | difference | of each seed |");
    println!("|---|---:|---:|---|");
    let mut first: Option<Vec<f64>> = None;
    let chosen = |mode: &Mode| mode.name == LONG[0].name || mode.name.contains(part);
    for mode in LONG.into_iter().filter(chosen) {
        let found: Vec<f64> = (0..SEEDS)
            .map(|seed| held_out(&long(mode, seed, &parts.training, &device), &parts.held_out))
            .collect();
        let first = first.get_or_insert_with(|| found.clone());
        let differences: Vec<f64> = found.iter().zip(first).map(|(a, b)| a - *b).collect();
        let (mean, deviation) = statistics(&found);
        let (more, spread) = statistics(&differences);
        let each: Vec<String> = differences.iter().map(|it| format!("{it:+.4}")).collect();
        println!(
            "| {} | {mean:.4} ± {deviation:.4} | {more:+.4} ± {spread:.4} | {} |",
            mode.name,
            each.join(", ")
        );
    }
}

fn statistics(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares = numbers.iter().map(|number| (number - mean).powi(2));
    (mean, (squares.sum::<f64>() / (count - 1.0)).sqrt())
}

/// Trains a model in f32.
pub fn trained() -> Transformer {
    let device = Device::flex().autodiff();
    from_scratch(MODES[0], 0, &Parts::read().training, &device)
}

/// A text in two parts.
struct Parts {
    training: Vec<u8>,
    tuning: Vec<u8>,
    held_out: Vec<u8>,
}

impl Parts {
    fn read() -> Self {
        let mut text = Vec::new();
        let read = GzDecoder::new(TEXT).read_to_end(&mut text);
        read.expect("the text is carried along");
        let held_out = text.split_off(text.len() - HELD_OUT);
        let tuning = text.split_off(text.len() * 7 / 10);
        Self {
            training: text,
            tuning,
            held_out,
        }
    }
}

fn from_scratch(mode: Mode, seed: u64, text: &[u8], device: &Device) -> Transformer {
    device.seed(seed);
    let config = TransformerConfig::new(CONTEXT).with_dim(64).with_depth(3);
    let model = config.with_heads(4).with_dropout(0.0).init(device);
    // Lion has a tenth of the rate, as its authors advise.
    let rate = if mode.is_lion() { 0.1 * RATE } else { RATE };
    train(mode, mode.cast(model), text, STEPS, rate, seed)
}

fn fine_tuned(mode: Mode, start: Transformer, text: &[u8], seed: u64) -> Transformer {
    train(mode, start, text, FINE_TUNING_STEPS, FINE_TUNING_RATE, seed)
}

/// Trains fused, computed in f32 for any format of the weights.
fn long(mode: Mode, seed: u64, text: &[u8], device: &Device) -> Transformer {
    device.seed(seed);
    let config = TransformerConfig::new(CONTEXT).with_dim(64).with_depth(1);
    let model = mode.cast(config.with_heads(4).with_dropout(0.0).init(device));
    let mut fused = FusedOptimizer::new(model, mode.optimizer())
        .unwrap()
        .with_config(mode.config())
        .unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    for step in 0..LONG_STEPS {
        let batch = random_pieces(text, LONG_BATCH, &mut random, device);
        fused
            .step(rate_at(step, LONG_STEPS, RATE), |model| model.loss(batch))
            .unwrap();
    }
    fused.full_precision_model()
}

/// Trains on random pieces.
fn train(
    mode: Mode,
    mut model: Transformer,
    text: &[u8],
    steps: usize,
    rate: f64,
    seed: u64,
) -> Transformer {
    let mut random = StdRng::seed_from_u64(seed);
    let mut optimizer: ModuleOptimizer = mode.optimizer();
    for step in 0..steps {
        let batch = random_pieces(text, BATCH, &mut random, &model.devices()[0]);
        let gradients = model.loss(batch).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(rate_at(step, steps, rate), model, gradients);
    }
    model
}

/// Returns the learning rate: a warm-up of 50 steps to `rate`, then a decay to zero.
fn rate_at(step: usize, steps: usize, rate: f64) -> f64 {
    let warm_up = ((step + 1) as f64 / 50.0).min(1.0);
    rate * warm_up * (1.0 - step as f64 / steps as f64)
}

fn random_pieces(
    text: &[u8],
    count: usize,
    random: &mut StdRng,
    device: &Device,
) -> Tensor<2, Int> {
    let starts = (0..count).map(|_| random.random_range(0..text.len() - CONTEXT));
    pieces(text, starts, device)
}

/// Returns pieces of `text` of one byte more than the context.
fn pieces(text: &[u8], starts: impl Iterator<Item = usize>, device: &Device) -> Tensor<2, Int> {
    let pieces = starts.flat_map(|start| &text[start..=start + CONTEXT]);
    let pieces: Vec<i32> = pieces.map(|byte| i32::from(*byte)).collect();
    let batch = pieces.len() / (CONTEXT + 1);
    Tensor::from_data(
        TensorData::new(pieces, [batch, CONTEXT + 1]),
        &device.clone().inner(),
    )
}

/// Returns the bits per byte of the held-out text, in the type of the model's computation.
fn held_out(model: &Transformer, text: &[u8]) -> f64 {
    let model = model.valid();
    let starts: Vec<usize> = (0..text.len() - CONTEXT).step_by(CONTEXT).collect();
    let batches = starts.chunks(BATCH).filter(|starts| starts.len() == BATCH);
    let losses = batches.map(|starts| {
        let batch = pieces(text, starts.iter().copied(), &model.devices()[0]);
        model.loss(batch).into_scalar::<f64>()
    });
    let losses: Vec<f64> = losses.collect();
    losses.iter().sum::<f64>() / losses.len() as f64 / std::f64::consts::LN_2
}
