//! Gradient policies of fused training equal the same steps in stock Burn.

mod accumulation;
mod clipping;
mod hook_order;
mod hooks;
mod in_state;
mod not_finite;
mod observers;
mod range;
mod resume;
mod scaling;
mod several_devices;

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

    /// The true gradient of a bias right before a batch norm is zero, and AdamW makes steps of what rounding leaves of
    /// it. Hence the tangent between the two.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.norm.forward(self.input.forward(x).tanh());
        let x = self.output.forward(x);
        x.powi_scalar(2).sum()
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

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.output.forward(self.input.forward(x).tanh());
        x.powi_scalar(2).sum()
    }
}

fn batches(device: &Device, count: usize) -> Vec<Tensor<2>> {
    (0..count)
        .map(|_| Tensor::random([5, 6], Distribution::Default, device))
        .collect()
}

/// A batch that makes the gradient of a weight that meets it infinite or not a number.
fn infinite(device: &Device) -> Tensor<2> {
    let batch = Tensor::ones([5, 6], device);
    // In one column, so that no infinities meet in a sum.
    batch.slice_fill([0..5, 0..1], f32::INFINITY)
}

/// The gradients of parameters of `module`, with the norm of each.
struct Each<'a> {
    gradients: &'a mut GradientsParams,
    norms: Vec<(ParamId, f64)>,
    coefficient: f64,
}

impl ModuleVisitor for Each<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let squares = gradient.clone().square().sum().into_scalar::<f64>();
            self.norms.push((param.id, squares.sqrt()));
            let gradient = gradient.mul_scalar(self.coefficient);
            self.gradients.register(param.id, gradient);
        }
    }
}

/// The norm of every gradient by parameter.
fn norms<M: Module>(model: &M, gradients: &mut GradientsParams) -> Vec<(ParamId, f64)> {
    scale(model, gradients, 1.0)
}

/// The global norm.
fn norm<M: Module>(model: &M, gradients: &mut GradientsParams) -> f64 {
    let squares = norms(model, gradients);
    let squares = squares.into_iter().map(|(_, norm)| norm * norm);
    squares.sum::<f64>().sqrt()
}

/// Multiplies every gradient.
fn scale<M: Module>(
    model: &M,
    gradients: &mut GradientsParams,
    coefficient: f64,
) -> Vec<(ParamId, f64)> {
    let mut each = Each {
        gradients,
        norms: Vec::new(),
        coefficient,
    };
    model.visit(&mut each);
    each.norms
}
