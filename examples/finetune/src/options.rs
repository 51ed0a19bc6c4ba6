//! The command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use backburn::{Budget, FusedConfig, GlobalNormClippingConfig};
use burn::tensor::FloatDType;
use clap::{Parser, ValueEnum};

use crate::adapters::{Adapters, TARGETS};
use crate::backend::Backend;
use crate::config::DecoderConfig;
use crate::method::Method;

/// Fine-tunes a language model of Hugging Face, and writes it back.
#[derive(Parser, Clone, Debug)]
#[command(args_override_self = true)]
pub struct Options {
    /// The folder of the model: `config.json`, `model.safetensors` (or several with an index), `tokenizer.json`.
    #[arg(long)]
    pub model: PathBuf,

    /// Training data: a text, or a file `.jsonl` whose lines have `text`, or `messages` of a chat. Several are read one after the other.
    #[arg(long, required = true)]
    pub data: Vec<PathBuf>,

    /// The output folder, which also contains the checkpoints. The same command resumes from the last checkpoint.
    #[arg(long)]
    pub output: PathBuf,

    /// Train within a number of bytes (`6GB`, or `machine` for what there is), with no more techniques than that takes.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["states", "weights", "accumulate"])]
    pub fit: Option<Budget>,

    /// Trained part of the model.
    #[arg(long, value_enum, default_value_t = Method::Full)]
    pub method: Method,

    /// Format of the weights.
    #[arg(long, value_enum, default_value_t = Weights::F32)]
    pub weights: Weights,

    /// Bits of a number in the optimizer's states, if not 32.
    #[arg(long, value_enum)]
    pub states: Option<States>,

    /// Rank of the adapters.
    #[arg(long, default_value_t = 8)]
    pub rank: usize,

    /// Numerator of the scale of the adapters, whose denominator is the rank.
    #[arg(long, default_value_t = 16.0)]
    pub alpha: f64,

    /// The layers that have adapters.
    #[arg(long, value_delimiter = ',', default_values = TARGETS)]
    pub targets: Vec<String>,

    /// Add the adapters to the weights at the end, and write a whole model.
    #[arg(long)]
    pub merge: bool,

    /// Tokens in a row; by default 512, or as many as the model was made for.
    #[arg(long)]
    pub length: Option<usize>,

    /// Give each document a row of its own, instead of packing them.
    #[arg(long)]
    pub pad: bool,

    /// Rows in a step.
    #[arg(long, default_value_t = 8)]
    pub batch: usize,

    /// Micro-batches in a step: the rows are divided among them.
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,

    /// Number of passes over the rows.
    #[arg(long, default_value_t = 1)]
    pub epochs: usize,

    /// Number of steps, instead of that of the epochs.
    #[arg(long)]
    pub steps: Option<usize>,

    /// Stop after this step, with a checkpoint.
    #[arg(long)]
    pub stop: Option<usize>,

    /// The highest learning rate; by default 1e-5, and 1e-4 for adapters.
    #[arg(long)]
    pub learning_rate: Option<f64>,

    /// The share of the steps in which the learning rate rises. Then it falls in a cosine to a tenth.
    #[arg(long, default_value_t = 0.03)]
    pub warm_up: f64,

    #[arg(long, default_value_t = 0.01)]
    pub weight_decay: f32,

    /// The largest global norm of the gradients; 0 for any. Full training uses the norm of the step before, adapters their own.
    #[arg(long, default_value_t = 1.0)]
    pub clip: f64,

    /// The share of the documents that is held out, to measure the loss on. The seed draws them.
    #[arg(long, default_value_t = 0.05)]
    pub held_out: f64,

    /// Data to measure the loss on, instead of documents that are held out.
    #[arg(long, value_name = "FILE", conflicts_with = "held_out")]
    pub validation: Vec<PathBuf>,

    /// Print the first rows, with the tokens that count in brackets, and the numbers of steps, tokens and trained weights, and end.
    #[arg(long)]
    pub dry_run: bool,

    /// Steps between two checkpoints.
    #[arg(long, default_value_t = 200)]
    pub save_every: usize,

    /// The number of checkpoints to keep.
    #[arg(long, default_value_t = 2)]
    pub keep_last: usize,

    /// Keep the activations of all layers, instead of computing them again in the backward pass.
    #[arg(long, conflicts_with = "fit")]
    pub keep_activations: bool,

    /// The beginning of the sample at the end; a question if all documents are chats; by default that of a row that is held out.
    #[arg(long)]
    pub prompt: Option<String>,

    /// Tokens of the sample.
    #[arg(long, default_value_t = 60)]
    pub sample: usize,

    /// Seed of the order of the rows, and of the adapters.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Where to train.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    F32,
    /// In bf16, with 8 more bits in the optimizer's state.
    Bf16,
    /// In bf16, rounded at random.
    Stochastic,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    #[value(name = "8")]
    Eight,
    #[value(name = "4")]
    Four,
}

impl Options {
    /// Returns an error for a value that makes no sense.
    pub fn check(&self, config: &DecoderConfig) -> Result<()> {
        self.adapters().check()?;
        for (option, number) in [
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("epochs", self.epochs),
            ("steps", self.steps.unwrap_or(1)),
            ("stop", self.stop.unwrap_or(1)),
            ("save-every", self.save_every),
            ("keep-last", self.keep_last),
            ("length", self.length(config)),
        ] {
            ensure!(number > 0, "`--{option}` is 0: use 1 or more");
        }
        ensure!(
            self.accumulate <= self.batch,
            "`--accumulate` is {}, and a step has {} rows: each micro-batch takes one",
            self.accumulate,
            self.batch
        );
        ensure!(
            self.length(config) <= config.max_length,
            "`--length` is {}, and the model was made for {} tokens",
            self.length(config),
            config.max_length
        );
        let rate = self.learning_rate();
        ensure!(
            rate > 0.0 && rate.is_finite(),
            "`--learning-rate` is {rate}: it must be a positive number"
        );
        ensure!(
            self.clip >= 0.0 && self.clip.is_finite(),
            "`--clip` is {}: it must be 0 or a positive number",
            self.clip
        );
        for (option, share) in [("warm-up", self.warm_up), ("held-out", self.held_out)] {
            ensure!(
                (0.0..1.0).contains(&share),
                "`--{option}` is {share}: it is a share from 0 to below 1"
            );
        }
        ensure!(
            !self.merge || self.method != Method::Full,
            "`--merge` is for adapters: choose them with `--method`"
        );
        Ok(())
    }

    pub fn adapters(&self) -> Adapters {
        Adapters {
            rank: self.rank,
            alpha: self.alpha,
            targets: self.targets.clone(),
        }
    }

    pub fn length(&self, config: &DecoderConfig) -> usize {
        self.length.unwrap_or(config.max_length.min(512))
    }

    pub fn learning_rate(&self) -> f64 {
        let default = match self.method {
            Method::Full => 1e-5,
            _ => 1e-4,
        };
        self.learning_rate.unwrap_or(default)
    }

    /// The type of the weights.
    pub fn dtype(&self) -> FloatDType {
        match self.weights {
            Weights::F32 => FloatDType::F32,
            Weights::Bf16 | Weights::Stochastic => FloatDType::BF16,
        }
    }

    pub fn optimizer(&self) -> AdamWConfig {
        AdamWConfig::new()
            .with_epsilon(1e-8)
            .with_weight_decay(self.weight_decay)
            .with_state_format(match self.states {
                None => StateFormat::Full,
                Some(States::Eight) => StateFormat::Bits8,
                Some(States::Four) => StateFormat::Bits4,
            })
            .with_weight_format(match self.weights {
                Weights::F32 => WeightFormat::Plain,
                Weights::Bf16 => WeightFormat::Split24,
                Weights::Stochastic => WeightFormat::Stochastic,
            })
    }

    /// Gradient policies.
    pub fn fused(&self) -> FusedConfig {
        // The gradients of adapters are small enough to wait for their norm.
        let clipping = match self.method {
            Method::Full => GlobalNormClippingConfig::Lagged(self.clip),
            _ => GlobalNormClippingConfig::ExactInBuffer(self.clip),
        };
        FusedConfig::new()
            .with_clipping((self.clip > 0.0).then_some(clipping))
            // The gradient of the head is a sum over chunks of tokens.
            .with_full_precision_accumulation(true)
    }
}
