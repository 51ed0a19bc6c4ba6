//! The command line.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use backburn::{Budget, Sharding, optim as ours};
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, LionConfig, ModuleOptimizer, SgdConfig,
};
use clap::{Parser, ValueEnum};

use crate::backend::Backend;
use crate::devices::Devices;
use crate::formats::Formats;
use crate::gradient_checkpointing::GradientCheckpointing;
use crate::offload::Waiting;
use crate::preset::Preset;

/// Trains a vision transformer with the optimizer fused into the backward pass.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// Number of passes over the training images.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    pub epochs: u16,

    /// Images per step, on all devices together: a multiple of their number.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: u16,

    /// Steps whose gradients are summed up for one update.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub accumulation: u16,

    /// Clip the gradients by this global norm.
    #[arg(long, value_parser = positive)]
    pub clip_norm: Option<f64>,

    /// Fraction of the activations that dropout drops, instead of the preset's.
    #[arg(long, value_parser = fraction)]
    pub dropout: Option<f64>,

    /// Largest learning rate, reached after a warm-up of one epoch.
    #[arg(long, default_value_t = 2e-3, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Optimizer.
    #[arg(long, value_enum, default_value_t = Optimizer::AdamW)]
    pub optimizer: Optimizer,

    /// Size of the model.
    #[arg(long, value_enum, default_value_t = Preset::Digits)]
    pub preset: Preset,

    /// Activations that are kept for the backward pass, instead of the preset's.
    #[arg(long, value_enum)]
    pub gradient_checkpointing: Option<GradientCheckpointing>,

    /// Backend to train on.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Train on several devices, each with a part of the images: this number of the backend's devices, or the devices of these
    /// names (`flex`, .., and with the feature `remote` addresses of servers, `ws://host:port`).
    #[arg(long, value_name = "COUNT|NAME,..", conflicts_with = "offload")]
    pub devices: Option<Devices>,

    /// Password of the servers among the devices, the same for all of them.
    #[cfg(feature = "remote")]
    #[arg(
        long,
        requires = "devices",
        env = "BACKBURN_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,

    /// Parts of the model that are sharded among several devices (in fused training).
    #[arg(long, value_enum, default_value_t = Shards::State, requires = "devices")]
    pub shards: Shards,

    /// Data in host memory while the device computes (in fused training).
    #[arg(long, value_enum)]
    pub offload: Option<Waiting>,

    #[command(flatten)]
    pub formats: Formats,

    /// Train within this number of bytes (`24GB`, or `machine` for the available memory), with only the techniques that this
    /// needs.
    #[arg(
        long,
        value_name = "BYTES",
        conflicts_with_all = ["stock", "compare", "devices", "offload", "states", "weights", "accumulation", "gradient_checkpointing"]
    )]
    pub fit: Option<Budget>,

    /// Seed of the weights, the order of the images and the dropout.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,

    /// Folder for the checkpoints, the logs and the trained model.
    #[arg(long, default_value = "runs/vit")]
    pub output: PathBuf,

    /// Your own images, one folder for each class (PNG, JPEG), instead of the digits.
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Train with Burn's own `Learner`.
    #[arg(long, conflicts_with = "compare")]
    pub stock: bool,

    /// Train both ways from the same weights and print a comparison.
    #[arg(long)]
    pub compare: bool,
}

/// Data that is sharded among several devices.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Shards {
    /// The optimizer states.
    State,
    /// Also the weights.
    Full,
}

impl From<Shards> for Sharding {
    fn from(shards: Shards) -> Self {
        match shards {
            Shards::State => Self::State,
            Shards::Full => Self::Full,
        }
    }
}

impl Options {
    /// Returns an error if the images of a step can't be distributed evenly.
    pub fn check(&self) -> Result<()> {
        let (images, devices) = (usize::from(self.batch_size), self.device_count());
        ensure!(
            images.is_multiple_of(devices),
            "`--batch-size` is {images}: with {devices} devices it must be a multiple of their number"
        );
        Ok(())
    }

    fn device_count(&self) -> usize {
        self.devices.as_ref().map_or(1, Devices::count)
    }

    /// Returns the number of images per step and device.
    pub fn images_per_device(&self) -> usize {
        usize::from(self.batch_size) / self.device_count()
    }

    /// Returns the default optimizer, with formats to choose.
    pub fn adamw(&self) -> ours::AdamWConfig {
        ours::AdamWConfig::new().with_weight_decay(0.05)
    }

    /// Returns the activations to keep: the option, or else the preset's.
    pub fn gradient_checkpointing(&self) -> GradientCheckpointing {
        let suitable = || match self.offload {
            Some(Waiting::Weights) => GradientCheckpointing::Block,
            _ if self.fit.is_some() => GradientCheckpointing::Block,
            _ => GradientCheckpointing::of(self.preset),
        };
        self.gradient_checkpointing.unwrap_or_else(suitable)
    }
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("a number above 0 and up to 1 is needed".to_string()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 => Ok(number),
        _ => Err("a number above 0 is needed".to_string()),
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..1.0).contains(&number) => Ok(number),
        _ => Err("a number from 0 and below 1 is needed".to_string()),
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    #[value(name = "adamw")]
    AdamW,
    Adam,
    Sgd,
    Lion,
    #[value(name = "adagrad")]
    AdaGrad,
    Adafactor,
}

impl Optimizer {
    /// Returns the optimizer, for weights and states in these formats.
    pub fn init(self, formats: Formats) -> Result<ModuleOptimizer> {
        if formats.are_full() {
            return Ok(self.burns());
        }
        let (states, weights) = (formats.of_states(), formats.of_weights());
        Ok(match self {
            Self::AdamW => ours::AdamWConfig::new()
                .with_weight_decay(0.05)
                .with_state_format(states)
                .with_weight_format(weights)
                .init(),
            Self::Adam => ours::AdamConfig::new()
                .with_state_format(states)
                .with_weight_format(weights)
                .init(),
            Self::Sgd => ours::SgdConfig::new()
                .with_state_format(states)
                .with_weight_format(weights)
                .init(),
            Self::Lion => ours::LionConfig::new()
                .with_state_format(states)
                .with_weight_format(weights)
                .init(),
            Self::AdaGrad | Self::Adafactor if states != ours::StateFormat::Full => {
                bail!("--states is for adamw, adam, sgd and lion")
            }
            Self::AdaGrad => ours::InFormat::new(AdaGradConfig::new().build(), weights).into(),
            Self::Adafactor => ours::InFormat::new(AdafactorConfig::new().build(), weights).into(),
        })
    }

    /// Returns Burn's own optimizer.
    fn burns(self) -> ModuleOptimizer {
        match self {
            Self::AdamW => AdamWConfig::new().with_weight_decay(0.05).init(),
            Self::Adam => AdamConfig::new().init(),
            Self::Sgd => SgdConfig::new().init(),
            Self::Lion => LionConfig::new().init(),
            Self::AdaGrad => AdaGradConfig::new().init(),
            Self::Adafactor => AdafactorConfig::new().init(),
        }
    }
}
