//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use backburn::Budget;
use clap::Parser;

use crate::backend::Backend;
use crate::fine_tune::Base;
use crate::formats::Formats;
use crate::model::{LanguageModelConfig, Preset};
use crate::offload::Waiting;
use crate::optimizer::Optimizer;
use crate::technique::{Place, Technique};
use crate::text;
use crate::tokens::Vocabulary;
use crate::train::Schedule;

/// Trains a language model on a text.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// A plain text file, instead of plays of Shakespeare.
    #[arg(long)]
    pub text: Option<PathBuf>,

    /// Tokens of the text.
    #[arg(long, value_enum, default_value_t = Vocabulary::Bytes)]
    pub vocabulary: Vocabulary,

    /// The size of the model.
    #[arg(long, value_enum, default_value_t = Preset::Small)]
    pub preset: Preset,

    /// Use the embedding as the head.
    #[arg(long)]
    pub tied: bool,

    /// Training technique.
    #[arg(long, value_enum, default_value_t = Technique::Chunked)]
    pub technique: Technique,

    /// Backend to train on.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Data in host memory while the device computes.
    #[arg(long, value_enum)]
    pub offload: Option<Waiting>,

    #[command(flatten)]
    pub formats: Formats,

    /// Optimizer.
    #[arg(long, value_enum, default_value_t = Optimizer::AdamW)]
    pub optimizer: Optimizer,

    /// Keep an exponential average of the weights with this decay (for example 0.999), and use it at the end.
    #[arg(long, value_name = "DECAY")]
    pub ema: Option<f64>,

    /// Context of the model in tokens, instead of the preset's.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub context: Option<u16>,

    /// Pieces of text per step, instead of the preset's.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: Option<u16>,

    /// Number of steps.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,

    /// Stop after this number of steps, and save; `--resume` continues.
    #[arg(long, requires = "save", value_parser = clap::value_parser!(u16).range(1..))]
    pub stop: Option<u16>,

    /// Largest learning rate.
    #[arg(long, default_value_t = 3e-3)]
    pub learning_rate: f64,

    /// Folder to save the training in.
    #[arg(long)]
    pub save: Option<PathBuf>,

    /// Folder of a training to resume.
    #[arg(long)]
    pub resume: Option<PathBuf>,

    /// Train a model on the plays, then fine-tune it on pages of this project: with LoRA on weights in full, in 8 and in 4
    /// bits, and in full.
    #[arg(long, conflicts_with_all = ["text", "fit", "save", "resume", "offload", "device", "optimizer", "ema"])]
    pub fine_tune: bool,

    /// File of weights for `--fine-tune` (safetensors, PyTorch or Burn), instead of training a model first.
    #[arg(long, requires = "fine_tune")]
    pub from: Option<PathBuf>,

    /// Bits of the frozen weights under LoRA's adapters, to try only one kind.
    #[arg(long, value_enum, requires = "fine_tune")]
    pub base: Option<Base>,

    /// Train within this number of bytes (`6GB`, or `machine` for the available memory), with only the techniques that this
    /// needs. A resumed training keeps its plan.
    #[arg(
        long,
        value_name = "BYTES",
        conflicts_with_all = ["offload", "states", "weights", "optimizer", "ema"]
    )]
    pub fit: Option<Budget>,

    /// Seed of the weights and the pieces.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

impl Options {
    /// Returns the config of the selected model.
    pub fn config(&self) -> Result<LanguageModelConfig> {
        ensure!(
            self.stop.is_none_or(|stop| stop <= self.steps),
            "`--stop` is after `--steps`: choose a smaller number"
        );
        ensure!(
            self.learning_rate > 0.0 && self.learning_rate.is_finite(),
            "`--learning-rate` is {}: it must be a positive number",
            self.learning_rate
        );
        let config = self
            .preset
            .config(self.vocabulary.size())
            .with_tied(self.tied);
        Ok(match self.context {
            Some(context) => config.with_context(context.into()),
            None => config,
        })
    }

    /// Returns the text of the training.
    pub fn read(&self) -> Result<String> {
        match &self.text {
            Some(path) => text::read(path),
            None => text::plays(),
        }
    }

    pub fn place(&self) -> Result<Place> {
        if let Some(waiting) = self.offload {
            waiting.check(self.device)?;
            ensure!(
                self.technique != Technique::Stock,
                "`--offload` needs fused training: choose another `--technique` than `stock`"
            );
        }
        if let Some(decay) = self.ema {
            ensure!(
                (0.0..1.0).contains(&decay),
                "`--ema` is {decay}: set it from 0 to below 1"
            );
            ensure!(
                self.technique != Technique::Stock,
                "`--ema` needs fused training: choose another `--technique` than `stock`"
            );
        }
        ensure!(
            self.fit.is_none() || self.technique.can_be_planned(),
            "`--fit` chooses layers to recompute: use `--technique block` or `chunked`"
        );
        Ok(Place {
            backend: self.device,
            offload: self.offload,
            formats: self.formats,
            optimizer: self.optimizer,
            ema: self.ema,
        })
    }

    /// Returns the number of pieces of text per step.
    pub fn batch(&self) -> usize {
        self.batch_size.map_or(self.preset.batch(), usize::from)
    }

    pub fn schedule(&self, config: &LanguageModelConfig) -> Schedule {
        Schedule {
            done: 0,
            steps: self.steps.into(),
            stop: self.stop.unwrap_or(self.steps).into(),
            batch: self.batch(),
            context: config.context,
            learning_rate: self.learning_rate,
        }
    }
}
