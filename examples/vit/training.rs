//! One training run, fused or stock.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use backburn::optim::AdamWConfig;
use backburn::train::{FusedLearner, LaunchFused};
use backburn::{FusedConfig, GlobalNormClippingConfig, Plan};
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::Dataset;
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::prelude::*;
use burn::tensor::{FloatDType, GradientCheckpointingStrategy};
use burn::train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn::train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, LearnerModel,
    MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep,
};

use crate::PEAK;
use crate::clipping::ClippedVit;
use crate::data::{Batch, ImageBatcher, Images, Split};
use crate::gradient_checkpointing::GradientCheckpointing;
use crate::lines;
use crate::model::{Vit, VitConfig};
use crate::offload::Waiting;
use crate::options::Options;

impl Vit {
    pub fn classify(&self, batch: Batch) -> ClassificationOutput {
        // In f32 for any type of the weights, because probabilities need this precision.
        let output = self.forward(batch.images).cast(FloatDType::F32);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, output, batch.labels)
    }
}

impl TrainStep for Vit {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        let loss = match self.micro_batches {
            1 => output.loss.clone(),
            parts => output.loss.clone() / parts as f32,
        };
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for Vit {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// Trainer of a run.
#[derive(Clone, Copy, Debug)]
pub enum Method {
    /// Burn's `Learner`.
    Stock,
    /// `FusedLearner`.
    Fused,
}

/// Result of a run.
pub struct Outcome {
    /// The trained model, without autodiff.
    pub model: Vit,
    /// Fraction of the held-out images that are classified correctly.
    pub accuracy: f64,
    pub time: Duration,
    /// Peak of the bytes allocated during the run, over those before it.
    pub peak: usize,
}

/// Trains from the weights in the file `initial`, with checkpoints and logs in `folder`; by the plan, if there is one.
pub fn run(
    options: &Options,
    config: &VitConfig,
    data: &Split,
    initial: &Path,
    folder: &Path,
    method: Method,
    plan: Option<Plan<AdamWConfig>>,
) -> Result<Outcome> {
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let start = Instant::now();

    let mut device = options.device.device().autodiff();
    if options.gradient_checkpointing() == GradientCheckpointing::Balanced {
        device = device.gradient_checkpointing();
    }
    device.seed(options.seed);
    let offload = match method {
        Method::Fused => options.offload,
        Method::Stock => None,
    };
    // An offloaded model is created on the host.
    let home = match offload {
        None => device.clone(),
        Some(_) => Device::flex().autodiff(),
    };
    let model = config.init(&home).try_load_file(initial)?;
    let model = match plan {
        // The plan sets the type.
        Some(_) => model,
        None => options.formats.cast(model)?,
    };
    let optimizer = options.optimizer.init(options.formats)?;
    let scheduler = scheduler(options, data)?;

    let training = Training {
        options,
        config,
        data,
        folder,
    };

    let ranks = match &options.devices {
        None => None,
        Some(devices) => Some(devices.open(options)?),
    };
    for rank in ranks.iter().flatten() {
        rank.seed(options.seed);
    }
    let strategy = || {
        let ranks = ranks.clone()?.into_iter();
        let ranks = ranks.map(|rank| like(rank, &device)).collect();
        Some(ExecutionStrategy::multi(
            ranks,
            MultiDeviceOptim::OptimSharded,
        ))
    };
    let how = FusedConfig::new()
        .with_clipping(options.clip_norm.map(GlobalNormClippingConfig::Exact))
        .with_offload(offload.map(Waiting::config))
        .with_sharding(options.shards.into());
    let place = match offload {
        Some(_) => Some(ExecutionStrategy::SingleDevice(device.clone())),
        None => strategy(),
    };
    let fused = |model, optimizer, scheduler| {
        let learner = match &plan {
            Some(plan) => plan.learner(|| model, scheduler)?,
            None => FusedLearner::new(model, optimizer, scheduler).with_config(how)?,
        };
        anyhow::Ok(match place {
            Some(strategy) => learner.with_training_strategy(strategy)?,
            None => learner,
        })
    };

    // The two methods differ in two lines.
    let (model, error) = match (method, options.clip_norm) {
        (Method::Fused, None) => {
            let learner = fused(model, optimizer, scheduler)?;
            let result = training.builder().launch_fused(learner);
            (result.model, result.error)
        }
        (Method::Stock, None) => {
            let learner = Learner::new(model, optimizer, scheduler);
            let mut training = training.builder();
            if let Some(strategy) = strategy() {
                training = training.with_training_strategy(strategy.into());
            }
            let result = training.launch(learner);
            (result.model, result.error)
        }
        (Method::Fused, Some(_)) => {
            let learner = fused(model, optimizer, scheduler)?;
            let norm = learner.gradient_norm();
            let training = training.builder().metric_train_numeric(norm);
            let result = training.launch_fused(learner);
            (result.model, result.error)
        }
        // Burn's learner can't clip by the global norm, so the model does.
        (Method::Stock, Some(max_norm)) => {
            ensure!(
                options.devices.is_none(),
                "Burn's own learner can't clip by the global norm on several devices: remove --clip-norm"
            );
            let model = ClippedVit {
                vit: model,
                max_norm,
            };
            let learner = Learner::new(model, optimizer, scheduler);
            let result = training.builder().launch(learner);
            (result.model.vit, result.error)
        }
    };
    if let Some(error) = error {
        return Err(anyhow!("{error}"));
    }
    let time = start.elapsed();
    let peak = PEAK.peak_usage() - before;

    let accuracy = accuracy(&model, options, config, &data.valid)?;
    Ok(Outcome {
        model,
        accuracy,
        time,
        peak,
    })
}

/// Returns `device` with the autodiff settings of `other`.
fn like(device: Device, other: &Device) -> Device {
    match other.gradient_checkpointing_strategy() {
        Some(GradientCheckpointingStrategy::Balanced) => device.autodiff().gradient_checkpointing(),
        _ => device.autodiff(),
    }
}

struct Training<'a> {
    options: &'a Options,
    config: &'a VitConfig,
    data: &'a Split,
    folder: &'a Path,
}

impl Training<'_> {
    /// Returns Burn's builder, which both methods share.
    fn builder<M>(&self) -> SupervisedTraining<M>
    where
        M: LearnerModel,
        M: TrainStep<Input = Batch, Output = ClassificationOutput>,
        M: InferenceStep<Input = Batch, Output = ClassificationOutput>,
    {
        let Self {
            options,
            config,
            data,
            folder,
        } = self;
        let train = dataloader(options, config, &data.train, Some(options.seed));
        let valid = dataloader(options, config, &data.valid, None);
        let training = SupervisedTraining::new(folder, train, valid)
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .metric_train_numeric(LearningRateMetric::new())
            .with_default_checkpointers()
            .grads_accumulation(options.accumulation.into())
            .num_epochs(options.epochs.into());
        lines::without_a_terminal(training)
    }
}

fn dataloader(
    options: &Options,
    config: &VitConfig,
    images: &Images,
    shuffle: Option<u64>,
) -> Arc<dyn DataLoader<Batch>> {
    let batcher = ImageBatcher {
        size: config.image_size,
        channels: config.channels,
    };
    let builder = DataLoaderBuilder::new(batcher).batch_size(options.images_per_device());
    let builder = match shuffle {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(images.clone())
}

/// Returns a warm-up of one epoch, then a cosine to zero.
fn scheduler(options: &Options, data: &Split) -> Result<ModuleLrScheduler> {
    let rate = options.learning_rate;
    let batches = data.train.len().div_ceil(options.batch_size.into());
    let epoch = batches.div_ceil(options.accumulation.into());
    let rest = epoch * usize::from(options.epochs - 1).max(1);
    let warm_up = LinearLrSchedulerConfig::new(rate / 10.0, rate, epoch);
    let cosine = CosineAnnealingLrSchedulerConfig::new(rate, rest);
    let schedulers = vec![
        LrSchedulerConfig::Linear(warm_up),
        LrSchedulerConfig::Cosine(cosine),
    ];
    SequentialLrSchedulerConfig::new(schedulers, vec![epoch])
        .init()
        .map_err(|error| anyhow!("{error}"))
}

fn accuracy(model: &Vit, options: &Options, config: &VitConfig, images: &Images) -> Result<f64> {
    let mut right = 0;
    let loader = dataloader(options, config, images, None);
    let devices = model.devices();
    for batch in loader.to_device(&devices[0]).iter() {
        let Batch { images, labels } = batch?;
        let predicted = model.forward(images).argmax(1).squeeze_dim::<1>(1);
        right += predicted.equal(labels).int().sum().into_scalar::<i64>();
    }
    Ok(right as f64 / images.len() as f64)
}
