//! A layer with running statistics.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct Normed {
    pub linear: Linear,
    pub norm: BatchNorm,
}

impl Normed {
    pub fn init(input: usize, output: usize, device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(input, output).init(device),
            norm: BatchNormConfig::new(output).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.norm.forward(self.linear.forward(x))
    }
}
