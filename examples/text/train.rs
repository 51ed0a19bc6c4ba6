//! Training loop and evaluation.

use std::time::{Duration, Instant};

use anyhow::Result;
use burn::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;

use crate::bigram::Bigram;
use crate::model::LanguageModel;
use crate::text::{Text, stacked};
use crate::trainer::Trainer;

/// Time between two lines of a training without a terminal.
const TELL: Duration = Duration::from_secs(10);

/// Length and learning rate of a training.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Number of steps that were made before.
    pub done: usize,
    /// Total number of steps.
    pub steps: usize,
    /// Step to stop before.
    pub stop: usize,
    /// Number of pieces of text in a step.
    pub batch: usize,
    pub context: usize,
    /// Largest learning rate.
    pub learning_rate: f64,
}

impl Schedule {
    /// Returns the learning rate of a step: a warm-up over the first twentieth, then a cosine down to a tenth.
    pub fn rate(&self, step: usize) -> f64 {
        let warm_up = self.steps.div_ceil(20);
        if step < warm_up {
            return self.learning_rate * (step + 1) as f64 / warm_up as f64;
        }
        let progress = (step - warm_up) as f64 / (self.steps - warm_up).max(1) as f64;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.learning_rate * (0.1 + 0.9 * cosine)
    }
}

/// Trains by `schedule`. Returns the mean losses of its first and of its last steps in nats per token.
pub fn train(
    trainer: &mut Trainer,
    text: &mut Text,
    schedule: Schedule,
    device: &Device,
    bytes: &PeakAlloc,
) -> Result<(f64, f64)> {
    let template = "{bar:20} {pos}/{len} {msg}, {eta} left";
    let progress = ProgressBar::new(schedule.steps as u64)
        .with_style(ProgressStyle::with_template(template)?)
        .with_position(schedule.done as u64);
    let started = Instant::now();
    let mut told = Instant::now();
    let mut losses = Vec::new();
    for step in schedule.done..schedule.stop {
        let batch = text.batch(schedule.batch, device);
        let loss = trainer.step(batch, schedule.rate(step))?;
        losses.push(loss.into_scalar::<f64>());
        let tokens = losses.len() * schedule.batch * schedule.context;
        let recent = &losses[losses.len().saturating_sub(20)..];
        let message = format!(
            "loss {:.3}, {:.0} tokens/s, {:.0} MB",
            mean(recent),
            tokens as f64 / started.elapsed().as_secs_f64(),
            bytes.current_usage() as f64 / 1e6
        );
        // The bar needs a terminal.
        if progress.is_hidden() && told.elapsed() > TELL {
            println!("step {} of {}: {message}", step + 1, schedule.steps);
            told = Instant::now();
        }
        progress.set_message(message);
        progress.inc(1);
    }
    progress.finish();
    let some = losses.len().min(20);
    Ok((mean(&losses[..some]), mean(&losses[losses.len() - some..])))
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Loss of a model on the held-out text.
pub struct HeldOut {
    /// Mean cross entropy in nats per token.
    pub loss: f64,
    /// Mean cross entropy of the bigram model, on the same pieces.
    pub bigram: f64,
    bytes_per_token: f64,
}

impl HeldOut {
    /// Number of pieces for a precise mean.
    pub const PIECES: usize = 64;

    /// Measures the inference `model` on `device`, with up to `pieces` pieces, in batches.
    pub fn measure(
        model: &LanguageModel,
        text: &Text,
        vocabulary: usize,
        batch: usize,
        pieces: usize,
        device: &Device,
    ) -> Self {
        let pieces = text.held_out(pieces);
        let device = device.clone().inner();
        let mut sum = 0.0;
        for batch in pieces.chunks(batch) {
            let tensor = stacked(batch, batch[0].len(), &device);
            let loss = model.losses(tensor).cross_entropy.into_scalar::<f64>();
            sum += loss * batch.len() as f64;
        }
        Self {
            loss: sum / pieces.len() as f64,
            bigram: Bigram::of(text.train(), vocabulary).loss(&pieces),
            bytes_per_token: text.bytes_per_token(),
        }
    }

    pub fn print(&self) {
        let bits = |loss: f64| loss / self.bytes_per_token / std::f64::consts::LN_2;
        println!(
            "{:<14}{:>10}{:>14}{:>16}",
            "held out", "loss", "perplexity", "bits per byte"
        );
        for (name, loss) in [("bigram", self.bigram), ("model", self.loss)] {
            println!(
                "{name:<14}{loss:>10.3}{:>14.2}{:>16.3}",
                loss.exp(),
                bits(loss)
            );
        }
    }
}
