//! A training launched fused is the training Burn's `Learner` runs.

use std::path::Path;
use std::sync::{Arc, Mutex};

use backburn::train::{FusedLearner, FusedModel, LaunchFused};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::module::{Module, ParamGroup};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, Relu};
use burn::optim::{AdamWConfig, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::checkpoint::{FileCheckpointer, KeepLastNCheckpoints};
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::metric::{LearningRateMetric, LossMetric};
use burn::train::{
    EarlyStoppingStrategy, InferenceStep, Interrupter, Learner, LearnerModel, LearningResult,
    MetricEarlyStoppingStrategy, RegressionOutput, StoppingCondition, SupervisedTraining,
    TrainOutput, TrainStep,
};

use crate::compare::{assert_changed, assert_equal_weights, copy, weights};

const ITEMS: usize = 14;
const BATCH: usize = 3; // Five batches an epoch, the last one short.

#[derive(Module, Debug)]
pub struct Regression {
    pub input: Linear,
    pub norm: BatchNorm,
    pub output: Linear,
}

impl Regression {
    pub fn init() -> Self {
        let device = &Device::flex().autodiff();
        Self {
            input: LinearConfig::new(2, 6).init(device),
            norm: BatchNormConfig::new(6).init(device),
            output: LinearConfig::new(6, 1).init(device),
        }
    }

    pub fn output(&self, batch: Points) -> RegressionOutput {
        let x = self.norm.forward(self.input.forward(batch.x));
        let output = self.output.forward(Relu::new().forward(x));
        let loss = (output.clone() - batch.y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Regression {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let output = self.output(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Regression {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> RegressionOutput {
        self.output(batch)
    }
}

#[derive(Clone, Debug)]
pub struct Points {
    x: Tensor<2>,
    y: Tensor<2>,
}

impl Points {
    pub fn ones(device: &Device) -> Self {
        Self {
            x: Tensor::ones([BATCH, 2], device),
            y: Tensor::ones([BATCH, 1], device),
        }
    }
}

/// A curve; `get` calls `on_item` first.
#[derive(Clone)]
pub struct Curve {
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

/// What a test varies.
pub struct Run {
    pub epochs: usize,
    pub resume: Option<usize>,
    pub accumulation: Option<usize>,
    pub early_stopping: bool,
    pub interrupter: Interrupter,
    pub data: Curve,
    pub optimizer: ModuleOptimizer,
    pub scheduler: ModuleLrScheduler,
}

impl Run {
    pub fn new(epochs: usize) -> Self {
        Self {
            epochs,
            resume: None,
            accumulation: None,
            early_stopping: false,
            interrupter: Interrupter::new(),
            data: Curve {
                on_item: Arc::new(|_| Ok(())),
            },
            optimizer: AdamWConfig::new().init(),
            scheduler: warm_up_then_cosine(),
        }
    }

    pub fn training<M>(&self, folder: &Path) -> SupervisedTraining<M>
    where
        M: LearnerModel,
        M: TrainStep<Input = Points, Output = RegressionOutput>,
        M: InferenceStep<Input = Points, Output = RegressionOutput>,
    {
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

    pub fn stock(self, model: Regression, folder: &Path) -> LearningResult<Regression> {
        let training = self.training(folder);
        training.launch(Learner::new(model, self.optimizer, self.scheduler))
    }

    fn fused(self, model: Regression, folder: &Path) -> LearningResult<Regression> {
        let training = self.training(folder);
        training.launch_fused(FusedLearner::new(model, self.optimizer, self.scheduler))
    }
}

fn warm_up_then_cosine() -> ModuleLrScheduler {
    let schedulers = vec![
        LrSchedulerConfig::Linear(LinearLrSchedulerConfig::new(1e-3, 1e-2, 4)),
        LrSchedulerConfig::Cosine(CosineAnnealingLrSchedulerConfig::new(1e-2, 12)),
    ];
    let config = SequentialLrSchedulerConfig::new(schedulers, vec![4]);
    config.init().expect("the schedule is valid")
}

/// Runs stock and fused from the same record, each in a folder of its own, and asserts the same
/// weights and the same files.
fn assert_same_training(run: impl Fn() -> Run) -> [LearningResult<Regression>; 2] {
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let [stock_folder, fused_folder] = folders.each_ref().map(|folder| folder.path());
    let initial = Regression::init();

    let stock = run().stock(copy(&initial, Regression::init), stock_folder);
    let fused = run().fused(copy(&initial, Regression::init), fused_folder);

    assert_equal_weights(&stock.model, &fused.model);
    assert_changed(&initial, &fused.model, |_| true);
    assert_eq!(files(stock_folder), files(fused_folder));
    [stock, fused]
}

/// The files under `folder` with the content of the metric logs.
pub fn files(folder: &Path) -> Vec<(String, String)> {
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
            let content = match path.extension().is_some_and(|e| e == "log") {
                true => std::fs::read_to_string(&path).unwrap(),
                false => String::new(),
            };
            found.push((name, content));
        }
    }
    found.sort();
    found
}

#[test]
fn launch_fused_equals_launch_with_metrics_and_checkpoints() {
    assert_same_training(|| Run::new(4));
}

#[test]
fn stock_checkpoints_resume_fused_and_fused_ones_stock() {
    let initial = Regression::init();
    let train = |epochs, resume, fused, folder: &Path| {
        let run = Run {
            resume,
            ..Run::new(epochs)
        };
        let model = copy(&initial, Regression::init);
        match fused {
            true => run.fused(model, folder).model,
            false => run.stock(model, folder).model,
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let whole = train(3, None, false, folder.path());

    for [first, last] in [[false, true], [true, false], [true, true]] {
        let folder = tempfile::tempdir().unwrap();
        train(2, None, first, folder.path());
        let resumed = train(3, Some(2), last, folder.path());
        assert_equal_weights(&whole, &resumed);
    }
}

#[test]
fn custom_checkpointers_get_the_stock_records() {
    let initial = Regression::init();
    let train = |fused: bool, folder: &Path| {
        fn custom<M: LearnerModel>(
            training: SupervisedTraining<M>,
            folder: &Path,
        ) -> SupervisedTraining<M> {
            let file = |name| FileCheckpointer::new(folder.join("custom"), name);
            training
                .with_custom_checkpointers(file("a"), file("b"), file("c"))
                .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
        }
        let run = Run::new(3);
        let model = copy(&initial, Regression::init);
        if fused {
            let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
            let training = custom(run.training::<FusedModel<Regression>>(folder), folder);
            training.launch_fused(learner);
        } else {
            let learner = Learner::new(model, run.optimizer.clone(), run.scheduler.clone());
            custom(run.training(folder), folder).launch(learner);
        }
        let mut names: Vec<_> = files(folder).into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name.starts_with("custom"));
        let model = Regression::init().load_file(folder.join(&names[0]));
        (names, weights(&model))
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    let stock = train(false, folders[0].path());
    let fused = train(true, folders[1].path());
    assert_eq!(stock.0.len(), 3);
    assert_eq!(stock, fused);
}

#[test]
fn gradient_accumulation_equals_stock_with_a_short_last_group() {
    for accumulation in [1, 2, 3] {
        assert_same_training(|| Run {
            accumulation: Some(accumulation),
            ..Run::new(2)
        });
    }
}

#[test]
fn early_stopping_ends_where_stock_ends() {
    let [stock, fused] = assert_same_training(|| Run {
        early_stopping: true,
        ..Run::new(9)
    });
    assert!(stock.interrupted.is_none() && fused.interrupted.is_none());
}

#[test]
fn early_stopping_ends_the_training() {
    #[derive(Clone)]
    struct AfterTwo;

    impl EarlyStoppingStrategy for AfterTwo {
        fn should_stop(&mut self, epoch: usize, _store: &EventStoreClient) -> bool {
            epoch == 2
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(9);
    let learner = FusedLearner::new(
        Regression::init(),
        run.optimizer.clone(),
        run.scheduler.clone(),
    );
    let training = run.training::<FusedModel<Regression>>(folder.path());
    training.early_stopping(AfterTwo).launch_fused(learner);
    assert!(folder.path().join("train/epoch-2").exists());
    assert!(!folder.path().join("train/epoch-3").exists());
}

#[test]
fn interruption_ends_where_stock_ends() {
    // The asynchronous event processor has no part in it: the data stop the training.
    let run = || {
        let mut run = Run::new(3);
        let interrupter = run.interrupter.clone();
        let seen = Mutex::new(0);
        run.data.on_item = Arc::new(move |_| {
            let mut seen = seen.lock().unwrap();
            *seen += 1;
            if *seen == ITEMS + 2 * BATCH {
                interrupter.stop(Some("enough"));
            }
            Ok(())
        });
        run
    };
    for result in assert_same_training(run) {
        let interruption = result.interrupted.expect("the training was interrupted");
        assert_eq!(interruption.reason.as_deref(), Some("enough"));
    }
}

#[test]
fn an_unreadable_item_ends_the_training_with_its_error() {
    let run = || {
        let mut run = Run::new(2);
        run.data.on_item = Arc::new(|index| match index {
            7 => Err(DatasetError::new(std::io::Error::other("item 7 is gone"))),
            _ => Ok(()),
        });
        run
    };
    for result in assert_same_training(run) {
        let error = result.error.expect("the training failed").to_string();
        assert!(error.contains("item 7 is gone"), "{error}");
    }
}

/// Plain gradient descent that notes every learning rate.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<f64>>>);

impl Optimizer for Noting {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        _state: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        self.0.lock().unwrap().push(lr);
        (tensor - grad.mul_scalar(lr), None)
    }

    fn to_device<const D: usize>(_state: (), _device: &Device) {}
}

#[test]
fn every_update_sees_the_learning_rate_of_stock() {
    let notes = [Noting::default(), Noting::default()];
    let run = |noting: &Noting| {
        let group = ParamGroup::from_predicate("norm");
        Run {
            optimizer: noting.clone().into(),
            scheduler: warm_up_then_cosine().with_group(group, ConstantLr::new(0.5)),
            ..Run::new(3)
        }
    };
    let folders = [(); 2].map(|_| tempfile::tempdir().unwrap());
    run(&notes[0]).stock(Regression::init(), folders[0].path());
    run(&notes[1]).fused(Regression::init(), folders[1].path());

    let [stock, fused] = notes.map(|noting| {
        // The parameters of a step come in another order.
        let notes = noting.0.lock().unwrap();
        let mut steps: Vec<Vec<f64>> = notes.chunks(6).map(<[f64]>::to_vec).collect();
        steps
            .iter_mut()
            .for_each(|step| step.sort_by(f64::total_cmp));
        steps
    });
    assert_eq!(stock.len(), 15);
    assert_eq!(stock[0][4..], [0.5, 0.5]);
    assert!(stock[0][0] < stock[3][0] && stock[3][0] > stock[14][0]);
    assert_eq!(stock, fused);
}

#[test]
fn a_second_backward_pass_in_a_step_is_refused() {
    #[derive(Module, Debug)]
    struct Twice {
        inner: Regression,
    }

    impl TrainStep for Twice {
        type Input = Points;
        type Output = RegressionOutput;

        fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
            TrainStep::step(&self.inner, batch.clone());
            TrainStep::step(&self.inner, batch)
        }
    }

    impl InferenceStep for Twice {
        type Input = Points;
        type Output = RegressionOutput;

        fn step(&self, batch: Points) -> RegressionOutput {
            self.inner.output(batch)
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(1);
    let model = Twice {
        inner: Regression::init(),
    };
    let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
    let training = run.training::<FusedModel<Twice>>(folder.path());
    let training = std::panic::AssertUnwindSafe(|| training.launch_fused(learner));
    let payload = std::panic::catch_unwind(training).err().unwrap();
    let message = payload.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("`inner.input.weight` was read again"),
        "{message}"
    );
}
