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
use crate::train::Course;

/// Trains a language model on a text.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// A plain text file, instead of plays of Shakespeare.
    #[arg(long)]
    pub text: Option<PathBuf>,

    /// What the text is cut into.
    #[arg(long, value_enum, default_value_t = Vocabulary::Bytes)]
    pub vocabulary: Vocabulary,

    /// The size of the model.
    #[arg(long, value_enum, default_value_t = Preset::Small)]
    pub preset: Preset,

    /// Let the embedding be the head, too.
    #[arg(long)]
    pub tied: bool,

    /// How to train.
    #[arg(long, value_enum, default_value_t = Technique::Chunked)]
    pub technique: Technique,

    /// Where to train.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// What waits in host memory while the device computes.
    #[arg(long, value_enum)]
    pub offload: Option<Waiting>,

    #[command(flatten)]
    pub formats: Formats,

    /// What steps the weights.
    #[arg(long, value_enum, default_value_t = Optimizer::AdamW)]
    pub optimizer: Optimizer,

    /// Keep an exponential average of the weights with this decay (0.999, say), and use it at the end.
    #[arg(long, value_name = "DECAY")]
    pub ema: Option<f64>,

    /// Tokens that the model sees at once, if not as many as the preset says.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub context: Option<u16>,

    /// Pieces of text per step, if not as many as the preset is meant for.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: Option<u16>,

    /// Number of steps.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,

    /// Stop after so many of the steps, and save; `--resume` makes the others.
    #[arg(long, requires = "save", value_parser = clap::value_parser!(u16).range(1..))]
    pub stop: Option<u16>,

    /// The highest learning rate.
    #[arg(long, default_value_t = 3e-3)]
    pub learning_rate: f64,

    /// A folder to save the training in.
    #[arg(long)]
    pub save: Option<PathBuf>,

    /// A folder with a training to go on with.
    #[arg(long)]
    pub resume: Option<PathBuf>,

    /// Train a model on the plays, then go on with it on pages of this project, with LoRA on weights in full, in 8 and in 4 bits, and all of it.
    #[arg(long, conflicts_with_all = ["text", "fit", "save", "resume", "offload", "device", "optimizer", "ema"])]
    pub fine_tune: bool,

    /// Weights for `--fine-tune` to start from, in a file of safetensors, of PyTorch or of Burn, instead of training a model first.
    #[arg(long, requires = "fine_tune")]
    pub from: Option<PathBuf>,

    /// Bits of the frozen weights under LoRA's adapters, if only one kind is to be tried.
    #[arg(long, value_enum, requires = "fine_tune")]
    pub base: Option<Base>,

    /// Train within so many bytes (`6GB`, or `machine` for what there is), with no more techniques than that takes. A training
    /// that is resumed goes on as it was planned.
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
    /// The model that is asked for.
    pub fn config(&self) -> Result<LanguageModelConfig> {
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

    /// The text that is to be learned.
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
                "`--offload` takes fused training: choose another `--technique` than `stock`"
            );
        }
        if let Some(decay) = self.ema {
            ensure!(
                (0.0..1.0).contains(&decay),
                "`--ema` is {decay}: a decay is from 0 to below 1"
            );
            ensure!(
                self.technique != Technique::Stock,
                "`--ema` takes fused training: choose another `--technique` than `stock`"
            );
        }
        ensure!(
            self.fit.is_none() || matches!(self.technique, Technique::Block | Technique::Chunked),
            "`--fit` chooses layers to run twice: that takes `--technique block` or `chunked`"
        );
        Ok(Place {
            backend: self.device,
            offload: self.offload,
            formats: self.formats,
            optimizer: self.optimizer,
            ema: self.ema,
        })
    }

    /// Pieces of text per step.
    pub fn batch(&self) -> usize {
        self.batch_size.map_or(self.preset.batch(), usize::from)
    }

    pub fn course(&self, config: &LanguageModelConfig) -> Course {
        Course {
            done: 0,
            steps: self.steps.into(),
            stop: self.stop.unwrap_or(self.steps).min(self.steps).into(),
            batch: self.batch(),
            context: config.context,
            learning_rate: self.learning_rate,
        }
    }
}
