//! Linear layers of one width.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::block_if;

pub fn linears(count: usize, width: usize, device: &Device) -> Vec<Linear> {
    let linear = |_| LinearConfig::new(width, width).init(device);
    (0..count).map(linear).collect()
}

/// The mean square of the output of `layers`, with a tangent after each. Each is a recomputed block, or a plain call.
pub fn loss_of_layers(layers: &[Linear], in_blocks: bool, x: Tensor<2>) -> Tensor<1> {
    let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
    let forward = |x, layer| block_if(in_blocks, layer, x, run);
    layers.iter().fold(x, forward).powi_scalar(2).mean()
}

/// Layers with a tangent after each.
#[derive(Module, Debug)]
pub struct Stack {
    pub layers: Vec<Linear>,
}

impl Stack {
    pub fn init(count: usize, width: usize, device: &Device) -> Self {
        Self {
            layers: linears(count, width, device),
        }
    }

    pub fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        loss_of_layers(&self.layers, false, x)
    }

    pub fn loss_in_blocks(&self, x: Tensor<2>) -> Tensor<1> {
        loss_of_layers(&self.layers, true, x)
    }
}
