//! One model with recomputed blocks trains in stock Burn and fused.

use std::sync::{Arc, Mutex};

use burn::tensor::GradientCheckpointingStrategy;

use super::*;

/// The gradient of an input in a step, and the strategy of its tape.
type Found = (TensorData, Option<GradientCheckpointingStrategy>);

/// A model that also reads the gradient of its input.
#[derive(Module, Debug)]
struct Blocks {
    blocks: Vec<Linear>,
    output: Linear,
    #[module(skip)]
    found: Arc<Mutex<Vec<Found>>>,
}

impl Blocks {
    fn init() -> Self {
        Self::init_on(&Device::flex().autodiff())
    }

    fn init_on(device: &Device) -> Self {
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
        let strategy = output.loss.gradient_checkpointing_strategy();
        let gradients = output.loss.backward();
        let gradient = x.grad(&gradients).expect("the loss depends on the input");
        let found = (gradient.into_data(), strategy);
        self.found.lock().unwrap().push(found);
        TrainOutput::new(self, gradients, output)
    }
}

impl_inference_step!(Blocks, Points);

#[test]
fn recomputed_blocks_train_as_in_stock_with_input_gradient() {
    let config = GradientCheckpointingConfig::new().with_keep_activations(vec![false, true]);
    let config = FusedConfig::new().with_gradient_checkpointing(config);
    let [stock, fused] = assert_same_training(Blocks::init, || Run {
        config: config.clone(),
        ..Run::new(2)
    });
    let [expected, found] =
        [&stock, &fused].map(|result| result.model.found.lock().unwrap().clone());
    assert_eq!(expected.len(), 10);
    assert_eq!(expected, found);
}

#[test]
fn checkpointing_strategy_of_burn_is_that_of_model_device() {
    let plain = Device::flex().autodiff();
    let recomputing = plain.clone().gradient_checkpointing();
    for (device, expected) in [
        (plain, GradientCheckpointingStrategy::Disabled),
        (recomputing, GradientCheckpointingStrategy::Balanced),
    ] {
        let model = Blocks::init_on(&device);
        let found = model.found.clone();
        Run::new(1).fused(model, folder().path());
        let found = found.lock().unwrap();
        assert_eq!(found.len(), 5);
        assert!(
            found
                .iter()
                .all(|(_, strategy)| *strategy == Some(expected))
        );
    }
}
