//! Gradient policies of fused training equal the same steps in stock Burn.

mod accumulation;
mod clipping;
mod hook_order;
mod hooks;
mod in_state;
mod observers;
mod range;
mod resume;
mod scaling;
mod several_devices;
mod two_passes;

use crate::common::*;

const LEARNING_RATE: f64 = 0.1;

#[derive(Module, Debug)]
struct Network {
    input: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Network {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(6, 8).init(device),
            norm: BatchNormConfig::new(8).init(device),
            output: LinearConfig::new(8, 3).init(device),
        }
    }

    /// The true gradient of a bias directly before a batch norm is zero, and AdamW makes full steps of its rounding
    /// error. Therefore a tangent is between the two.
    fn loss(&self, x: &Tensor<2>) -> Tensor<1> {
        let x = self.norm.forward(self.input.forward(x.clone()).tanh());
        self.output.forward(x).powi_scalar(2).sum()
    }

    fn copied(&self) -> Self {
        copy(self, || Self::init(&self.devices()[0]))
    }
}

/// Without normalization: an infinite input reaches the gradient of `input` and no other.
#[derive(Module, Debug)]
struct Squashed {
    input: Linear,
    output: Linear,
}

impl Squashed {
    fn init(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(6, 8).init(device),
            output: LinearConfig::new(8, 3).init(device),
        }
    }

    fn loss(&self, x: &Tensor<2>) -> Tensor<1> {
        let x = self.input.forward(x.clone()).tanh();
        self.output.forward(x).powi_scalar(2).sum()
    }

    fn copied(&self) -> Self {
        copy(self, || Self::init(&self.devices()[0]))
    }
}

fn batches(device: &Device, count: usize) -> Vec<Tensor<2>> {
    randoms(count, [5, 6], device)
}

/// Returns a batch that makes the gradient of a weight infinite or NaN.
fn infinite(device: &Device) -> Tensor<2> {
    let batch = Tensor::ones([5, 6], device);
    // In one column, so that no sum has two infinities.
    batch.slice_fill([0..5, 0..1], f32::INFINITY)
}

pub fn norm<M: Module>(model: &M, gradients: &mut GradientsParams) -> f64 {
    let mut squares = 0.0;
    map_gradients(model, gradients, |_, gradient| {
        squares += gradient.clone().square().sum().into_scalar::<f64>();
        Some(gradient)
    });
    squares.sqrt()
}

pub fn scale<M: Module>(model: &M, gradients: &mut GradientsParams, coefficient: f64) {
    map_gradients(model, gradients, |_, gradient| {
        Some(gradient.mul_scalar(coefficient))
    });
}
