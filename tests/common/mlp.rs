//! A model of two layers.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct Mlp {
    pub input: Linear,
    pub output: Linear,
}

impl Mlp {
    pub fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 4).init(device),
            output: LinearConfig::new(4, 2).init(device),
        }
    }

    pub fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.output.forward(self.input.forward(x).tanh());
        x.powi_scalar(2).mean()
    }
}
