//! A model with recomputed blocks is one model for both trainings.

use std::sync::{Arc, Mutex};

use backburn::train::{FusedLearner, LaunchFused};
use burn::tensor::GradientCheckpointingStrategy;
use burn::train::{Learner, RegressionOutput, TrainOutput, TrainStep};

use super::{Points, Regression, Run, files};
use crate::common::*;

/// Asks for the gradient with respect to its input, too.
#[derive(Module, Debug)]
struct Blocks {
    blocks: Vec<Linear>,
    output: Linear,
    #[module(skip)]
    found: Arc<Mutex<Vec<TensorData>>>,
}

impl Blocks {
    fn init() -> Self {
        let device = &Device::flex().autodiff();
        let linear = |outputs| LinearConfig::new(2, outputs).init(device);
        Self {
            blocks: (0..3).map(|_| linear(2)).collect(),
            output: linear(1),
            found: Arc::default(),
        }
    }

    fn output(&self, batch: Points) -> RegressionOutput {
        let run = |block: &Linear, x| block.forward(x).tanh();
        let blocks = self.blocks.iter();
        let x = blocks.fold(batch.x, |x, block| gradient_checkpointing(block, x, run));
        let output = self.output.forward(x);
        let loss = (output.clone() - batch.y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Blocks {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let x: Tensor<2> = batch.x.require_grad();
        let output = self.output(Points {
            x: x.clone(),
            y: batch.y,
        });
        let gradients = output.loss.backward();
        let gradient = x.grad(&gradients).expect("the loss depends on the input");
        self.found.lock().unwrap().push(gradient.into_data());
        TrainOutput::new(self, gradients, output)
    }
}

impl_inference_step!(Blocks, Points);

#[test]
fn recomputed_blocks_train_as_in_stock_with_the_gradient_of_the_input() {
    let initial = Blocks::init();
    let [stock_folder, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let stock = copy(&initial, Blocks::init);
    let stock_found = stock.found.clone();
    let run = Run::new(2);
    let training = run.training(stock_folder.path());
    let stock = training.launch(Learner::new(stock, run.optimizer, run.scheduler));

    let fused = copy(&initial, Blocks::init);
    let found = fused.found.clone();
    let run = Run::new(2);
    let training = run.training(folder.path());
    let config = GradientCheckpointingConfig::new().with_keep_activations(vec![false, true]);
    let learner = FusedLearner::new(fused, run.optimizer, run.scheduler)
        .with_config_ok(FusedConfig::new().with_gradient_checkpointing(config));
    let fused = training.launch_fused(learner);

    assert_equal_weights(&stock.model, &fused.model);
    assert_changed(&initial, &fused.model.train(), |_| true);
    assert_eq!(files(stock_folder.path()), files(folder.path()));
    let (expected, found) = (stock_found.lock().unwrap(), found.lock().unwrap());
    assert_eq!(expected.len(), 10);
    assert_eq!(*expected, *found);
}

/// Notes how the tape of a step keeps activations.
#[derive(Module, Debug)]
struct Noting {
    inner: Regression,
    #[module(skip)]
    found: Arc<Mutex<Vec<Option<GradientCheckpointingStrategy>>>>,
}

impl TrainStep for Noting {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, batch: Points) -> TrainOutput<RegressionOutput> {
        let output = self.inner.output(batch);
        let strategy = output.loss.gradient_checkpointing_strategy();
        self.found.lock().unwrap().push(strategy);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl_inference_step!(Noting, Points, inner);

#[test]
fn burns_gradient_checkpointing_goes_by_the_device_of_the_model() {
    let plain = Device::flex().autodiff();
    let recomputing = plain.clone().gradient_checkpointing();
    for (device, expected) in [
        (plain, GradientCheckpointingStrategy::Disabled),
        (recomputing, GradientCheckpointingStrategy::Balanced),
    ] {
        let model = Noting {
            inner: Regression::init_on(&device),
            found: Arc::default(),
        };
        let found = model.found.clone();
        let run = Run::new(1);
        let learner = FusedLearner::new(model, run.optimizer.clone(), run.scheduler.clone());
        let folder = tempfile::tempdir().unwrap();
        run.training(folder.path()).launch_fused(learner);
        assert_eq!(*found.lock().unwrap(), [Some(expected); 5]);
    }
}
