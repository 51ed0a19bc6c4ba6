//! A residual block with running statistics.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
pub struct Block {
    pub expand: Linear,
    pub norm: BatchNorm,
    pub contract: Linear,
}

impl Block {
    pub fn init(device: &Device) -> Self {
        Self {
            expand: LinearConfig::new(6, 12).init(device),
            norm: BatchNormConfig::new(12).init(device),
            contract: LinearConfig::new(12, 6).init(device),
        }
    }

    /// The true gradient of a bias directly before a batch norm is zero, and AdamW makes full steps of its rounding
    /// error. Therefore a tangent is between the two.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.norm.forward(self.expand.forward(x.clone()).tanh());
        x + self.contract.forward(hidden)
    }
}
