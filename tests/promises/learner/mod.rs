//! Code that the tests of launched trainings share: a small regression on a curve, and its runs.

mod averages;
mod edited;
mod exchange;
mod gradient_checkpointing;
mod late;
mod launch;
mod offload;
mod panics;
mod policies;
mod records;
mod replicas;
mod resumed;

use std::path::Path;
use std::sync::Arc;

use backburn::train::{FusedLearner, LaunchFused};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::nn::Relu;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    ExecutionStrategy, InferenceStep, Interrupter, Learner, LearnerModel, LearningResult,
    MetricEarlyStoppingStrategy, RegressionOutput, StoppingCondition, SupervisedTraining,
    TrainOutput, TrainStep,
};
use tempfile::TempDir;

use crate::common::*;

const ITEMS: usize = 14;
const BATCH: usize = 3; // Five batches an epoch, the last one short.

#[derive(Module, Debug)]
struct Regression {
    input: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Regression {
    fn init() -> Self {
        Self::init_on(&Device::flex().autodiff())
    }

    fn init_on(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(2, 6).init(device),
            norm: BatchNormConfig::new(6).init(device),
            output: LinearConfig::new(6, 1).init(device),
        }
    }

    fn output(&self, batch: Points) -> RegressionOutput {
        // In the type of the weights, except for the norm, whose statistics are in f32.
        let dtype = FloatDType::from(self.input.weight.val().dtype());
        let x = self.input.forward(batch.x.cast(dtype));
        let x = self.norm.forward(x.cast(FloatDType::F32)).cast(dtype);
        let output = self.output.forward(Relu::new().forward(x));
        let output = output.cast(FloatDType::F32);
        let loss = (output.clone() - batch.y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl_train_step!(Regression, Points);
impl_inference_step!(Regression, Points);

#[derive(Clone, Debug)]
struct Points {
    x: Tensor<2>,
    y: Tensor<2>,
}

impl Points {
    fn ones(device: &Device) -> Self {
        Self {
            x: Tensor::ones([BATCH, 2], device),
            y: Tensor::ones([BATCH, 1], device),
        }
    }
}

/// Points of a curve. `get` first calls `on_item`.
#[derive(Clone)]
struct Curve {
    on_item: Arc<dyn Fn(usize) -> Result<(), DatasetError> + Send + Sync>,
}

impl Dataset<[f32; 3]> for Curve {
    fn get(&self, index: usize) -> Result<[f32; 3], DatasetError> {
        (self.on_item)(index)?;
        let t = index as f32 / ITEMS as f32;
        Ok([t, 1.0 - t * t, (3.0 * t).sin()])
    }

    fn len(&self) -> usize {
        ITEMS
    }
}

struct PointBatcher;

impl Batcher<[f32; 3], Points> for PointBatcher {
    fn batch(&self, items: Vec<[f32; 3]>, device: &Device) -> Points {
        let rows = items.len();
        let x: Vec<f32> = items.iter().flat_map(|[x1, x2, _]| [*x1, *x2]).collect();
        let y: Vec<f32> = items.iter().map(|[_, _, y]| *y).collect();
        Points {
            x: Tensor::from_data(TensorData::new(x, [rows, 2]), device),
            y: Tensor::from_data(TensorData::new(y, [rows, 1]), device),
        }
    }
}

/// A model that learns from points.
trait OnPoints:
    LearnerModel
    + TrainStep<Input = Points, Output = RegressionOutput>
    + InferenceStep<Input = Points, Output = RegressionOutput>
{
}

impl<M> OnPoints for M where
    M: LearnerModel
        + TrainStep<Input = Points, Output = RegressionOutput>
        + InferenceStep<Input = Points, Output = RegressionOutput>
{
}

#[derive(Clone)]
struct Run {
    epochs: usize,
    resume: Option<usize>,
    accumulation: Option<usize>,
    early_stopping: bool,
    strategy: Option<fn() -> ExecutionStrategy>,
    config: FusedConfig,
    interrupter: Interrupter,
    data: Curve,
    optimizer: ModuleOptimizer,
    scheduler: ModuleLrScheduler,
}

impl Run {
    fn new(epochs: usize) -> Self {
        Self {
            epochs,
            resume: None,
            accumulation: None,
            early_stopping: false,
            strategy: None,
            config: FusedConfig::new(),
            interrupter: Interrupter::new(),
            data: Curve {
                on_item: Arc::new(|_| Ok(())),
            },
            optimizer: AdamWConfig::new().init(),
            scheduler: warm_up_then_cosine(),
        }
    }

    fn training<M: OnPoints>(&self, folder: &Path) -> SupervisedTraining<M> {
        let loader = || DataLoaderBuilder::new(PointBatcher).batch_size(BATCH);
        let valid = Run::new(0).data;
        let mut training = SupervisedTraining::new(
            folder,
            loader().build(self.data.clone()),
            loader().build(valid),
        )
        .metrics((LossMetric::new(),))
        .metric_train_numeric(LearningRateMetric::new())
        .with_application_logger(None)
        .with_interrupter(self.interrupter.clone())
        .with_default_checkpointers()
        .num_epochs(self.epochs);
        if let Some(epoch) = self.resume {
            training = training.checkpoint(epoch);
        }
        if let Some(accumulation) = self.accumulation {
            training = training.grads_accumulation(accumulation);
        }
        if self.early_stopping {
            training = training.early_stopping(MetricEarlyStoppingStrategy::new(
                &LossMetric::new(),
                Aggregate::Mean,
                Direction::Highest, // The loss falls.
                Split::Valid,
                StoppingCondition::NoImprovementSince { n_epochs: 2 },
            ));
        }
        training
    }

    fn stock<M: OnPoints>(&self, model: M, folder: &Path) -> LearningResult<M> {
        let mut training = self.training(folder);
        if let Some(strategy) = self.strategy {
            training = training.with_training_strategy(strategy().into());
        }
        let (optimizer, scheduler) = (self.optimizer.clone(), self.scheduler.clone());
        training.launch(Learner::new(model, optimizer, scheduler))
    }

    fn learner<M: OnPoints>(&self, model: M) -> FusedLearner<M> {
        let learner = FusedLearner::new(model, self.optimizer.clone(), self.scheduler.clone());
        let learner = match self.strategy {
            None => learner,
            Some(strategy) => learner.with_training_strategy(strategy()).unwrap(),
        };
        learner.with_config(self.config.clone()).unwrap()
    }

    fn fused<M: OnPoints>(&self, model: M, folder: &Path) -> LearningResult<M> {
        self.training(folder).launch_fused(self.learner(model))
    }

    /// Runs a fused training if `is_fused`, or else one in stock Burn.
    fn in_way<M: OnPoints>(&self, is_fused: bool, model: M, folder: &Path) -> M {
        let result = match is_fused {
            true => self.fused(model, folder),
            false => self.stock(model, folder),
        };
        assert!(result.error.is_none(), "{:?}", result.error);
        result.model
    }

    /// Returns the model after three epochs. The last epoch resumes from the checkpoint of the second. `launch` trains
    /// an epoch in a folder, with or without an earlier checkpoint.
    fn resumed<M>(&self, launch: impl Fn(Run, &Path) -> M) -> M {
        let folder = folder();
        let first = Run {
            epochs: 2,
            ..self.clone()
        };
        launch(first, folder.path());
        let then = Run {
            epochs: 3,
            resume: Some(2),
            ..self.clone()
        };
        launch(then, folder.path())
    }
}

/// Trains stock and fused from the same record, each in its own folder. Panics unless weights and files are equal.
#[track_caller]
fn assert_same_training<M: OnPoints>(
    init: impl Fn() -> M,
    run: impl Fn() -> Run,
) -> [LearningResult<M>; 2] {
    let [of_stock, of_fused] = [folder(), folder()];
    let initial = init();
    let stock = run().stock(copy(&initial, &init), of_stock.path());
    let fused = run().fused(copy(&initial, &init), of_fused.path());
    assert_equal_weights(&stock.model, &fused.model);
    assert_changed(&initial, &fused.model, |_| true);
    assert_eq!(files(of_stock.path()), files(of_fused.path()));
    [stock, fused]
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The values in the log of a metric in the training of the first epoch.
fn logged(folder: &Path, metric: &str) -> Vec<f64> {
    let log = std::fs::read_to_string(folder.join("train/epoch-1").join(metric)).unwrap();
    let values = log.lines().map(|line| line.split(',').next().unwrap());
    values.map(|value| value.parse().unwrap()).collect()
}

fn warm_up_then_cosine() -> ModuleLrScheduler {
    let schedulers = vec![
        LrSchedulerConfig::Linear(LinearLrSchedulerConfig::new(1e-3, 1e-2, 4)),
        LrSchedulerConfig::Cosine(CosineAnnealingLrSchedulerConfig::new(1e-2, 12)),
    ];
    let config = SequentialLrSchedulerConfig::new(schedulers, vec![4]);
    config.init().expect("the schedule is valid")
}

/// The scalars and tensors of a record, as text, without the state of gradient policies, which stock Burn does not have.
fn recorded(file: &Path) -> String {
    let reader = burn_pack::Reader::from_file(file).unwrap();
    let mut scalars = reader.scalars().clone();
    let of_policies = scalars
        .keys()
        .find_map(|name| name.strip_suffix("gradient_norm"));
    if let Some(id) = of_policies.map(str::to_string) {
        scalars.retain(|name, _| !name.starts_with(&id));
    }
    let tensors = reader.into_tensors().unwrap().into_iter();
    let tensors = tensors.map(|it| {
        let bytes = it.to_bytes().unwrap().to_vec();
        format!("{} {:?} {:?} {bytes:?}", it.name, it.dtype, it.shape)
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort();
    format!("{scalars:?} {tensors:?}")
}

/// The files under `folder` with the content of the metric logs and of the records.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            let content = match path.extension().and_then(|it| it.to_str()) {
                Some("log") => std::fs::read_to_string(&path).unwrap(),
                Some("bpk") => recorded(&path),
                _ => String::new(),
            };
            found.push((name, content));
        }
    }
    found.sort();
    found
}
