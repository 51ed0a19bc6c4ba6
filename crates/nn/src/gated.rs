//! Gated activations.

use backburn_base::{AnyTensor, in_type};
use burn::nn::SwiGlu;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu_approximate, silu};
use rayon::prelude::*;

use crate::check_shape;
use crate::elements::{Elements, TASK, have_kernel, tensor, wide};
use crate::linear::linear;
use crate::node::{Computed, operation, recomputed};
use crate::simd::{sigmoid, vectorized};

/// Computes `silu(gate) * up` from the layers of [`SwiGlu`], as [`SwiGlu::forward`] does
/// ([Shazeer, 2020](https://arxiv.org/abs/2002.05202)).
///
/// For the backward pass it keeps `gate` and `up`. With `s = sigmoid(gate)` and `dy` for the gradient of the output, the gradient of
/// `gate` is `dy * up * s * (1 + gate * (1 - s))`, that of `up` is `dy * gate * s`.
///
/// # Panics
///
/// If the shapes of the layers and `x` don't fit, as in [`linear`], or those of both layers differ.
pub fn swiglu<const D: usize>(layers: &SwiGlu, x: Tensor<D>) -> Tensor<D> {
    let gate = linear(&layers.linear_inner, x.clone());
    gated(Activation::Silu, gate, linear(&layers.linear_outer, x))
}

/// Computes `gelu(gate) * up` ([Shazeer, 2020](https://arxiv.org/abs/2002.05202)). With `is_approximate` it uses the formula with `tanh`
/// ([Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)), as Gemma does, otherwise that with the error function.
///
/// For the backward pass it keeps `gate` and `up`. With `dy` for the gradient of the output, the gradient of `gate` is
/// `dy * up * gelu'(gate)`, that of `up` is `dy * gelu(gate)`.
///
/// # Panics
///
/// If the shapes of `gate` and `up` differ.
pub fn geglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>, is_approximate: bool) -> Tensor<D> {
    let activation = match is_approximate {
        true => Activation::GeluApproximate,
        false => Activation::Gelu,
    };
    gated(activation, gate, up)
}

#[derive(Clone, Copy, Debug)]
enum Activation {
    Silu,
    Gelu,
    GeluApproximate,
}

/// Square root of `2 / pi`.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// Factor of the cube in the approximation of GELU.
const CUBE: f32 = 0.044_715;

fn gated<const D: usize>(activation: Activation, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    check_shape("`up`", up.dims(), gate.dims(), "`gate`");
    // The error function has no kernel.
    let has_kernel = !matches!(activation, Activation::Gelu);
    let compose = move |inputs: [AnyTensor; 2]| composed(activation, inputs.map(|it| it.0)).into();
    let run = |inputs: [AnyTensor; 2], needed| match has_kernel && have_kernel(&inputs) {
        true => kernel(activation, inputs),
        false => recomputed(inputs, needed, compose),
    };
    operation([gate.into(), up.into()], run, compose).of_dims()
}

fn composed(activation: Activation, inputs: [Tensor<1>; 2]) -> Tensor<1> {
    let dtype = inputs[0].dtype();
    let [gate, up] = inputs.map(|it| in_type(it, wide(dtype)));
    let active = match activation {
        Activation::Silu => silu(gate),
        // The gradient of Burn's `gelu` is that of the approximation.
        Activation::Gelu => gate.clone() * ((gate * 0.5_f64.sqrt()).erf() * 0.5 + 0.5),
        Activation::GeluApproximate => gelu_approximate(gate),
    };
    in_type(active * up, dtype)
}

fn kernel(activation: Activation, [gate, up]: [AnyTensor; 2]) -> Computed {
    let shape = gate.shape();
    let length = shape.num_elements();
    let elements = [&gate, &up].map(Elements::contiguous);
    let [gates, ups] = elements.each_ref().map(|it| it.get().par_chunks(TASK));
    let mut y = vec![0.0; length];
    let tasks = y.par_chunks_mut(TASK).zip(gates.zip(ups));
    tasks.for_each(|(y, (gate, up))| forward_task(activation, gate, up, y));
    let output = tensor(y, shape.clone(), &gate);
    Computed::new(output, move |gradient| {
        let elements = [&gate, &up, &gradient].map(Elements::contiguous);
        let [gates, ups, gradients] = elements.each_ref().map(|it| it.get().par_chunks(TASK));
        let (mut gate_gradient, mut up_gradient) = (vec![0.0; length], vec![0.0; length]);
        let outputs = gate_gradient
            .par_chunks_mut(TASK)
            .zip(up_gradient.par_chunks_mut(TASK));
        let tasks = outputs.zip(gates.zip(ups).zip(gradients));
        tasks.for_each(|((gate_gradient, up_gradient), ((gate, up), gradient))| {
            backward_task(
                activation,
                [gate, up, gradient],
                [gate_gradient, up_gradient],
            );
        });
        [
            tensor(gate_gradient, shape.clone(), &gate),
            tensor(up_gradient, shape, &up),
        ]
    })
}

/// Returns the share of `x` that passes, and its derivative by `x`. That of GELU is `(1 + tanh(u)) / 2 = sigmoid(2 u)`.
#[inline(always)]
fn share(activation: Activation, x: f32) -> [f32; 2] {
    let (square, scale) = (x * x, 2.0 * SQRT_2_OVER_PI);
    let [inner, slope] = match activation {
        Activation::Silu => [x, 1.0],
        _ => [
            x * (square * CUBE + 1.0) * scale,
            (square * (3.0 * CUBE) + 1.0) * scale,
        ],
    };
    let [s, rest] = sigmoid(inner);
    [s, slope * s * rest]
}

vectorized! {
    fn forward_task(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) -> () {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * share(activation, *gate)[0] * up;
        }
    }
}

vectorized! {
    fn backward_task(activation: Activation, inputs: [&[f32]; 3], outputs: [&mut [f32]; 2]) -> () {
        let ([gate, up, gradient], [gate_gradient, up_gradient]) = (inputs, outputs);
        let inputs = gate.iter().zip(up).zip(gradient);
        let outputs = gate_gradient.iter_mut().zip(up_gradient);
        for ((gate_gradient, up_gradient), ((gate, up), gradient)) in outputs.zip(inputs) {
            let [share, slope] = share(activation, *gate);
            *gate_gradient = gradient * up * (share + gate * slope);
            *up_gradient = gradient * gate * share;
        }
    }
}
