//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use backburn::optim::{AdamWConfig, StateFormat, WeightFormat};
use backburn::{Budget, FusedConfig, GlobalNormClippingConfig};
use burn::tensor::{DType, FloatDType};
use clap::{Parser, ValueEnum};

use crate::adapters::{Adapters, TARGETS};
use crate::backend::Backend;
use crate::config::DecoderConfig;
use crate::first_adapters;
use crate::method::Method;
use crate::save_every::SaveEvery;

/// The rank of adapters if `--rank` is missing.
const RANK: usize = 8;

/// The scale of adapters if `--alpha` is missing.
const ALPHA: f64 = 16.0;

/// The rows in a step if `--batch` is missing.
const BATCH: usize = 8;

/// The most tokens in a row, and in a step: the masks and the indices of more could not be allocated.
const MAX_LENGTH: usize = 1 << 20;
const MAX_TOKENS: usize = 1 << 28;

/// The most passes over the rows.
const MAX_EPOCHS: usize = 1_000_000;

const EXAMPLE: &str = "Example, for a model in the folder `SmolLM2-135M` and a text:\n\n  \
    cargo run --release -p finetune -- --model SmolLM2-135M --data book.txt --fit 6GB --output out";

/// Fine-tunes a language model of Hugging Face, and writes it back.
#[derive(Parser, Clone, Debug)]
#[command(args_override_self = true, version, after_help = EXAMPLE)]
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

    /// Rank of the adapters; by default 8.
    #[arg(long)]
    pub rank: Option<usize>,

    /// Numerator of the scale of the adapters, whose denominator is the rank; by default 16.
    #[arg(long)]
    pub alpha: Option<f64>,

    /// The linear layers that have adapters, with commas between them; by default `all-linear`, which are `q_proj`, `k_proj`, `v_proj`,
    /// `o_proj`, `gate_proj`, `up_proj` and `down_proj`.
    #[arg(long, value_delimiter = ',')]
    pub targets: Vec<String>,

    /// The folder of adapters in the format of `peft` to start from; by default new ones, which change nothing.
    #[arg(long)]
    pub adapters: Option<PathBuf>,

    /// Add the adapters to the weights at the end, and write a whole model.
    #[arg(long)]
    pub merge: bool,

    /// Float type of the weights in the written file; `base` is the type of the base. Adapters are written as they are trained.
    #[arg(long, value_enum, default_value_t = FileType::Base)]
    pub dtype: FileType,

    /// Replace the files of a model in `--output` that this program has not written, or that were changed since. Other files of a model
    /// there are removed.
    #[arg(long)]
    pub overwrite: bool,

    /// Tokens in a row; by default 512, or as many as the model was made for.
    #[arg(long)]
    pub length: Option<usize>,

    /// Give each document a row of its own, instead of packing them.
    #[arg(long)]
    pub pad: bool,

    /// Rows in a step.
    #[arg(long, default_value_t = BATCH)]
    pub batch: usize,

    /// Micro-batches in a step: the rows are divided among them.
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,

    /// Number of passes over the rows.
    #[arg(long, default_value_t = 1)]
    pub epochs: usize,

    /// Number of steps, instead of that of the epochs.
    #[arg(long, conflicts_with = "epochs")]
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

    /// Decoupled weight decay of AdamW.
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

    /// Interval between two checkpoints: a number of steps, or a time such as `10min`.
    #[arg(long, value_name = "STEPS|TIME", default_value_t = SaveEvery::Steps(200))]
    pub save_every: SaveEvery,

    /// The number of checkpoints to keep.
    #[arg(long, default_value_t = 2)]
    pub keep_last: usize,

    /// Write the weights of the checkpoint with the lowest held-out loss, instead of the last ones.
    #[arg(long)]
    pub keep_best: bool,

    /// End the training after this number of checkpoints without a lower held-out loss.
    #[arg(long, value_name = "CHECKPOINTS")]
    pub patience: Option<usize>,

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

/// Float type of the weights in a file.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// The type of the base.
    Base,
    F32,
    F16,
    Bf16,
}

impl FileType {
    /// Returns the type itself, for a base in the type `base`.
    pub fn dtype(self, base: DType) -> DType {
        match self {
            Self::Base => base,
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    #[value(name = "8")]
    Eight,
    #[value(name = "4")]
    Four,
}

impl Options {
    /// Returns an error for a value that is out of range, and for an option that the selected method does not use.
    pub fn check(&self, config: &DecoderConfig) -> Result<()> {
        self.check_method(config)?;
        for (option, number) in [
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("epochs", self.epochs),
            ("steps", self.steps.unwrap_or(1)),
            ("stop", self.stop.unwrap_or(1)),
            ("keep-last", self.keep_last),
            ("patience", self.patience.unwrap_or(1)),
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
        let length = self.length(config);
        let most = config.max_length.min(MAX_LENGTH);
        ensure!(
            length <= most,
            "`--length` is {length}, and the model was made for {}{}",
            config.max_length,
            match most < config.max_length {
                true => format!(": this program trains on rows of at most {most} tokens"),
                false => " tokens".to_owned(),
            }
        );
        ensure!(
            self.batch <= MAX_TOKENS / length,
            "`--batch` is {}: with rows of {length} tokens use at most {}",
            self.batch,
            MAX_TOKENS / length
        );
        ensure!(
            self.epochs <= MAX_EPOCHS,
            "`--epochs` is {}: use at most {MAX_EPOCHS}",
            self.epochs
        );
        for (option, number) in [
            ("learning-rate", self.learning_rate()),
            ("alpha", self.adapters().alpha),
        ] {
            ensure!(
                number > 0.0 && number.is_finite(),
                "`--{option}` is {number}: it must be a positive number"
            );
        }
        for (option, number) in [
            ("clip", self.clip),
            ("weight-decay", f64::from(self.weight_decay)),
        ] {
            ensure!(
                number >= 0.0 && number.is_finite(),
                "`--{option}` is {number}: it must be 0 or a positive number"
            );
        }
        for (option, share) in [("warm-up", self.warm_up), ("held-out", self.held_out)] {
            ensure!(
                (0.0..1.0).contains(&share),
                "`--{option}` is {share}: it is a share from 0 to below 1"
            );
        }
        Ok(())
    }

    /// Checks the options of adapters and of the written file.
    fn check_method(&self, config: &DecoderConfig) -> Result<()> {
        let has_adapters = self.method.has_adapters();
        for (option, is_set) in [
            ("rank", self.rank.is_some()),
            ("alpha", self.alpha.is_some()),
            ("targets", !self.targets.is_empty()),
            ("adapters", self.adapters.is_some()),
            ("merge", self.merge),
        ] {
            ensure!(
                has_adapters || !is_set,
                "`--{option}` is for adapters: choose them with `--method`"
            );
        }
        ensure!(
            !has_adapters || self.merge || self.dtype == FileType::Base,
            "`--dtype` is for a whole model, and adapters are written as they are trained: add `--merge`, or leave `--dtype` out"
        );
        let adapters = self.adapters();
        adapters.check()?;
        ensure!(
            adapters.rank <= config.hidden,
            "`--rank` is {}, and the model has {} hidden elements: use at most that many",
            adapters.rank,
            config.hidden
        );
        match &self.adapters {
            Some(folder) => first_adapters::check(folder, &adapters, config.layers()),
            None => Ok(()),
        }
    }

    /// Returns the number of steps of a training on `rows`.
    pub fn steps(&self, rows: usize) -> Result<usize> {
        ensure!(
            self.batch <= rows.max(BATCH),
            "`--batch` is {}, and the data has {rows} rows to train on: use at most that many",
            self.batch
        );
        let all = rows.checked_mul(self.epochs);
        let all = all.with_context(|| format!("`--epochs` is {}: use fewer", self.epochs))?;
        let steps = self.steps.unwrap_or(all.div_ceil(self.batch));
        let fits = steps.checked_mul(self.batch).is_some();
        ensure!(fits, "`--steps` is {steps}: use fewer");
        Ok(steps)
    }

    /// Returns `true` if the held-out loss decides about the training.
    pub fn follows_loss(&self) -> bool {
        self.keep_best || self.patience.is_some()
    }

    pub fn adapters(&self) -> Adapters {
        let is_all = self.targets.is_empty() || self.targets == ["all-linear"];
        Adapters {
            rank: self.rank.unwrap_or(RANK),
            alpha: self.alpha.unwrap_or(ALPHA),
            targets: match is_all {
                true => TARGETS.map(String::from).to_vec(),
                false => self.targets.clone(),
            },
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
