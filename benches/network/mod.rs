//! The networks of the benchmarks, with their `Learner` traits.

#![allow(dead_code)] // No benchmark uses them all.

#[path = "../../examples/vit/model.rs"]
pub mod vit;

use backburn::gradient_checkpointing;
use burn::nn::{Gelu, Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};

/// A model whose loss needs only an input.
pub trait Network<const D: usize> {
    fn loss(&self, input: Tensor<D>) -> Tensor<1>;
}

/// Returns a function that makes steps of stock Burn.
pub fn stock<const D: usize, N: Network<D> + Module + 'static>(
    model: N,
    mut optimizer: ModuleOptimizer,
    input: Tensor<D>,
    learning_rate: f64,
) -> Box<dyn FnMut()> {
    let mut model = Some(model);
    Box::new(move || {
        let current = model.take().expect("the step before has put it back");
        let gradients = current.loss(input.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &current);
        model = Some(optimizer.step(learning_rate, current, gradients));
    })
}

/// A model with many parameters: residual blocks of 512 and 2048, 12 by default.
#[derive(Module, Debug)]
pub struct Mlp {
    blocks: Vec<(Linear, Linear)>,
    #[module(skip)]
    recompute_blocks: bool,
}

impl Mlp {
    pub fn init(device: &Device) -> Self {
        Self::of_size(12, 512, device)
    }

    /// Creates another number of blocks of another width.
    pub fn of_size(depth: usize, width: usize, device: &Device) -> Self {
        let block = || {
            let expand = LinearConfig::new(width, 4 * width).init(device);
            let contract = LinearConfig::new(4 * width, width).init(device);
            (expand, contract)
        };
        Self {
            blocks: (0..depth).map(|_| block()).collect(),
            recompute_blocks: false,
        }
    }

    pub fn with_recompute_blocks(self, recompute_blocks: bool) -> Self {
        Self {
            recompute_blocks,
            ..self
        }
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let forward = |(expand, contract): &(Linear, Linear), x: Tensor<2>| {
            let hidden = Gelu::new().forward(expand.forward(x.clone()));
            x + contract.forward(hidden)
        };
        self.blocks
            .iter()
            .fold(input, |x, block| match self.recompute_blocks {
                true => gradient_checkpointing(block, x, forward),
                false => forward(block, x),
            })
    }
}

impl Network<2> for Mlp {
    fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        self.forward(input).powi_scalar(2).mean()
    }
}

impl Network<4> for vit::Vit {
    fn loss(&self, input: Tensor<4>) -> Tensor<1> {
        self.forward(input).powi_scalar(2).mean()
    }
}

/// Two recurrent layers of 256.
#[derive(Module, Debug)]
pub struct Recurrent {
    layers: Vec<Lstm>,
    #[module(skip)]
    recompute_blocks: bool,
}

impl Recurrent {
    pub fn init(device: &Device) -> Self {
        Self::of_width(256, device)
    }

    /// Creates layers of another width.
    pub fn of_width(width: usize, device: &Device) -> Self {
        let layer = || LstmConfig::new(width, width, true).init(device);
        Self {
            layers: vec![layer(), layer()],
            recompute_blocks: false,
        }
    }

    pub fn with_recompute_blocks(self, recompute_blocks: bool) -> Self {
        Self {
            recompute_blocks,
            ..self
        }
    }
}

impl Network<3> for Recurrent {
    fn loss(&self, input: Tensor<3>) -> Tensor<1> {
        let forward = |layer: &Lstm, x: Tensor<3>| layer.forward(x, None).0;
        let layers = self.layers.iter();
        let output = layers.fold(input, |x, layer| match self.recompute_blocks {
            true => gradient_checkpointing(layer, x, forward),
            false => forward(layer, x),
        });
        output.powi_scalar(2).mean()
    }
}

/// Implements the `Learner` traits of Burn for a model.
macro_rules! learner_model {
    ($model:ty, $rank:literal) => {
        impl TrainStep for $model {
            type Input = Tensor<$rank>;
            type Output = RegressionOutput;

            fn step(&self, input: Tensor<$rank>) -> TrainOutput<RegressionOutput> {
                let loss = self.loss(input);
                TrainOutput::new(self, loss.backward(), regression(loss))
            }
        }

        impl InferenceStep for $model {
            type Input = Tensor<$rank>;
            type Output = RegressionOutput;

            fn step(&self, input: Tensor<$rank>) -> RegressionOutput {
                regression(self.loss(input))
            }
        }
    };
}

learner_model!(Mlp, 2);
learner_model!(Recurrent, 3);
learner_model!(vit::Vit, 4);

fn regression(loss: Tensor<1>) -> RegressionOutput {
    let nothing = Tensor::zeros([1, 1], &loss.device());
    RegressionOutput::new(loss, nothing.clone(), nothing)
}
