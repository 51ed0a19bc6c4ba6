//! The command line.

use std::path::PathBuf;

use backburn::Budget;
use burn::tensor::{DType, FloatDType};
use clap::{Parser, ValueEnum};

use crate::adapters::{Adapters, TARGETS};
use crate::backend::Backend;
use crate::config::DecoderConfig;
use crate::method::Method;
use crate::save_every::SaveEvery;

/// The rank of adapters if `--rank` is missing.
const RANK: usize = 8;

/// The scale of adapters if `--alpha` is missing.
const ALPHA: f64 = 16.0;

/// The rows in a step if `--batch` is missing.
pub const BATCH: usize = 8;

const EXAMPLE: &str = "Example, for a model in the folder `SmolLM2-135M` and a text:\n\n  \
    cargo run --release -p finetune -- --model SmolLM2-135M --data book.txt --fit 6GB --output out";

/// Fine-tunes a language model of Hugging Face, and writes it back.
#[derive(Parser, Clone, Debug)]
#[command(version, after_help = EXAMPLE)]
pub struct Options {
    /// The folder of the model: `config.json`, `model.safetensors` (or several with an index), `tokenizer.json`.
    #[arg(long)]
    pub model: PathBuf,

    /// Training data: a text (`.txt`, `.md`), or documents in JSON (`.jsonl`, `.ndjson`, `.json`) with `text`, `messages`, `prompt` and
    /// `completion`, `instruction` and `output`, or `conversations`. Several files are read one after the other.
    #[arg(long, required = true)]
    pub data: Vec<PathBuf>,

    /// The output folder, which also contains the checkpoints. The same command resumes from the last checkpoint.
    #[arg(long)]
    pub output: PathBuf,

    /// Train within a number of bytes (`6GB`, or `machine` for the memory of the machine), with the fewest techniques that fit.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["states", "weights", "accumulate"])]
    pub fit: Option<Budget>,

    /// Trained part of the model.
    #[arg(long, value_enum, default_value_t = Method::Full)]
    pub method: Method,

    /// Format of the weights.
    #[arg(long, value_enum, default_value_t = Weights::F32)]
    pub weights: Weights,

    /// Bits of a number in the optimizer's states; by default 32.
    #[arg(long, value_enum)]
    pub states: Option<States>,

    /// Rank of the adapters; by default 8.
    #[arg(long)]
    pub rank: Option<usize>,

    /// Numerator of the scale of the adapters, whose denominator is the rank; by default 16.
    #[arg(long, allow_negative_numbers = true)]
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
    /// there are removed. Checkpoints that this program has written for another training are not replaced: remove their folder.
    #[arg(long)]
    pub overwrite: bool,

    /// Tokens in a row; by default 512, or as many as the model was made for.
    #[arg(long)]
    pub length: Option<usize>,

    /// Give each document a row of its own, instead of packing them.
    #[arg(long)]
    pub pad: bool,

    /// Rows in a step. Data with fewer rows than the default has all of them in a step.
    #[arg(long, default_value_t = BATCH)]
    pub batch: usize,

    /// The most micro-batches in a step. All have the same number of rows; the last may have fewer.
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,

    /// Number of passes over the rows. The last step is filled with rows of the next pass.
    #[arg(long, default_value_t = 1)]
    pub epochs: usize,

    /// Number of steps, instead of `--epochs`.
    #[arg(long, conflicts_with = "epochs")]
    pub steps: Option<usize>,

    /// Stop after this step, with a checkpoint.
    #[arg(long)]
    pub stop: Option<usize>,

    /// The highest learning rate; by default 1e-5, and 1e-4 for adapters.
    #[arg(long, allow_negative_numbers = true)]
    pub learning_rate: Option<f64>,

    /// The share of the steps in which the learning rate rises. Then it falls in a cosine to a tenth.
    #[arg(long, default_value_t = 0.03, allow_negative_numbers = true)]
    pub warm_up: f64,

    /// Decoupled weight decay of AdamW.
    #[arg(long, default_value_t = 0.01, allow_negative_numbers = true)]
    pub weight_decay: f32,

    /// The largest global norm of the gradients; 0 for any. Full training uses the norm of the step before, adapters their own.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub clip: f64,

    /// The share of the documents that is held out, to measure the loss on. The seed draws them.
    #[arg(long, default_value_t = 0.05, allow_negative_numbers = true)]
    pub held_out: f64,

    /// Data to measure the loss on, instead of documents that are held out.
    #[arg(long, value_name = "FILE", conflicts_with = "held_out")]
    pub validation: Vec<PathBuf>,

    /// Print the first rows, with the tokens that count in brackets, the numbers of steps, tokens and trained weights, and the plan of
    /// `--fit`. Nothing is trained.
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

    /// The beginning of the sample at the end; a question if all documents are chats; by default the beginning of a row that is held
    /// out, or of a training row if none is.
    #[arg(long)]
    pub prompt: Option<String>,

    /// Tokens of the sample.
    #[arg(long, default_value_t = 60)]
    pub sample: usize,

    /// Seed of the documents that are held out, of the order of the rows, and of the adapters.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Backend to train on.
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
    /// Returns `true` if the result is a file of adapters, not a whole model.
    pub fn writes_adapters(&self) -> bool {
        self.method.has_adapters() && !self.merge
    }

    /// Returns `true` if the held-out loss decides about the training.
    pub fn follows_loss(&self) -> bool {
        self.keep_best || self.patience.is_some()
    }

    pub fn adapters(&self) -> Adapters {
        let is_all = self.targets.is_empty() || self.targets == ["all-linear"];
        let mut targets = match is_all {
            true => TARGETS.map(String::from).to_vec(),
            false => self.targets.clone(),
        };
        // The order on the command line has no effect.
        targets.sort_by_key(|target| TARGETS.iter().position(|it| it == target));
        targets.dedup();
        Adapters {
            rank: self.rank.unwrap_or(RANK),
            alpha: self.alpha.unwrap_or(ALPHA),
            targets,
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
}
