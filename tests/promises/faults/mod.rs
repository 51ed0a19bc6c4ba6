//! No fault costs a parameter, an optimizer state or an accumulated gradient, and none is silent.

mod accumulated;
mod model;
mod optimizer;
mod reads;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};

use crate::compare::*;
use crate::panics::panic_of;

const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Net {
    input: Linear,
    output: Linear,
}

impl Net {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(3, 4).init(device),
            output: LinearConfig::new(4, 2).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.output.forward(self.input.forward(x).tanh());
        x.powi_scalar(2).mean()
    }
}

fn flex() -> Device {
    Device::flex().autodiff()
}

fn xs(device: &Device, count: usize) -> Vec<Tensor<2>> {
    (0..count)
        .map(|_| Tensor::random([5, 3], Distribution::Default, device))
        .collect()
}
