//! Fused training with Burn's `SupervisedTraining`, metrics, display and checkpoints. Two lines differ from stock Burn.
//!
//! ```sh
//! cargo run --release --example learner
//! ```

use backburn::train::{FusedLearner, LaunchFused};
use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::metric::LossMetric;
use burn::train::{InferenceStep, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep};

#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

type Batch = (Tensor<2>, Tensor<2>);

impl Network {
    fn loss(&self, (x, y): Batch) -> RegressionOutput {
        let output = self.output.forward(self.hidden.forward(x).tanh());
        RegressionOutput::new((output.clone() - y.clone()).square().mean(), output, y)
    }
}

impl TrainStep for Network {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = self.loss(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Network {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.loss(batch)
    }
}

struct Curve;

impl Batcher<f32, Batch> for Curve {
    fn batch(&self, points: Vec<f32>, device: &Device) -> Batch {
        let shape = [points.len(), 1];
        let x = Tensor::from_data(TensorData::new(points, shape), device);
        (x.clone(), x.sin())
    }
}

pub fn main() {
    let device = Device::flex().autodiff();
    let points = |n| InMemDataset::new((0..n).map(|i| 6.0 * i as f32 / n as f32 - 3.0).collect());
    let loader = |n| {
        DataLoaderBuilder::new(Curve)
            .batch_size(32)
            .shuffle(1)
            .build(points(n))
    };
    let folder = tempfile::tempdir().expect("a folder for the checkpoints"); // a permanent one in a real program

    let training = SupervisedTraining::new(folder.path(), loader(1024), loader(100))
        .metrics((LossMetric::new(),))
        .with_default_checkpointers()
        .num_epochs(5);
    let model = Network {
        hidden: LinearConfig::new(1, 64).init(&device),
        output: LinearConfig::new(64, 1).init(&device),
    };
    let scheduler = CosineAnnealingLrSchedulerConfig::new(1e-2, 5 * 32).init();
    let scheduler = scheduler.expect("the rate and the number of steps are valid");

    let learner = FusedLearner::new(model, AdamWConfig::new().init(), scheduler); // was Learner::new
    let result = training.launch_fused(learner); // was training.launch
    if let Some(error) = result.error {
        panic!("the training ended with an error: {error}");
    }
}
