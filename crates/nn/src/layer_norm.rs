//! Layer norm.

use backburn_base::{AnyTensor, in_type};
use burn::nn::LayerNorm;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::elements::{Elements, have_kernel, rows_of_task, sum_of_tasks, tensor};
use crate::node::{Computed, operation};
use crate::simd::{dot, dot_shifted, sum, vectorized};
use crate::whole::{sum_of_rows, wide};

/// Normalizes the last dimension of `x` as [`LayerNorm::forward`] does:
/// `y = (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta` ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)).
/// `epsilon` must be that of the config of `norm`, whose field is private (1e-5 by default).
///
/// For the backward pass it keeps `x` and two numbers a row, the mean and `r = 1 / sqrt(var(x) + epsilon)`. With `n` for the
/// normalized row and `g` for the gradient of `y` times `gamma`, the gradient of `x` is `r * (g - mean(g) - n * mean(g * n))`. Those
/// of `gamma` and `beta` are the gradient of `y` times `n`, and the gradient of `y`, summed over the rows.
///
/// # Panics
///
/// If the last dimension of `x` is not that of the norm.
pub fn layer_norm<const D: usize>(norm: &LayerNorm, epsilon: f64, x: Tensor<D>) -> Tensor<D> {
    let [d_model] = norm.gamma.shape().dims();
    let shape = x.dims();
    assert!(
        shape[D - 1] == d_model,
        "the last dimension of the input is {}: it must be that of the norm, {d_model}",
        shape[D - 1]
    );
    let (x, gamma) = (x.into(), norm.gamma.val().into());
    match &norm.beta {
        Some(beta) => with_inputs::<D, 3>([x, gamma, beta.val().into()], epsilon),
        None => with_inputs::<D, 2>([x, gamma], epsilon),
    }
}

fn with_inputs<const D: usize, const N: usize>(inputs: [AnyTensor; N], epsilon: f64) -> Tensor<D> {
    let run = |inputs: [AnyTensor; N], _| match have_kernel(&inputs) {
        true => kernel(inputs, epsilon as f32),
        false => operations::<D, N>(inputs, epsilon),
    };
    operation(inputs, run, |inputs| {
        forward::<D, N>(&inputs, epsilon).0.into()
    })
    .of_rank()
}

/// Computes the norm, the normalized rows, and `r`.
fn forward<const D: usize, const N: usize>(
    inputs: &[AnyTensor; N],
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>, Tensor<D>) {
    let dtype = inputs[0].dtype();
    let x = in_type(inputs[0].clone().of_rank::<D>(), wide(dtype));
    let weight = |index: usize| in_type(inputs[index].0.clone(), wide(dtype)).unsqueeze();
    let centered = x.clone() - x.mean_dim(D - 1);
    let variance = centered.clone().square().mean_dim(D - 1);
    let r = variance.add_scalar(epsilon).sqrt().recip();
    let normed = centered * r.clone();
    let scaled = normed.clone() * weight(1);
    let output = if N == 3 { scaled + weight(2) } else { scaled };
    (in_type(output, dtype), normed, r)
}

fn operations<const D: usize, const N: usize>(inputs: [AnyTensor; N], epsilon: f64) -> Computed<N> {
    let (output, ..) = forward::<D, N>(&inputs, epsilon);
    Computed::new(output.into(), move |gradient| {
        let dtype = wide(inputs[0].dtype());
        let (_, normed, r) = forward::<D, N>(&inputs, epsilon);
        let gradient = in_type(gradient.of_rank::<D>(), dtype);
        let scaled = gradient.clone() * in_type(inputs[1].0.clone(), dtype).unsqueeze();
        let mean = scaled.clone().mean_dim(D - 1);
        let mean_normed = (scaled.clone() * normed.clone()).mean_dim(D - 1);
        let of_x = (scaled - mean - normed.clone() * mean_normed) * r;
        let mut all = [
            AnyTensor::from(of_x),
            sum_of_rows(gradient.clone() * normed).into(),
            sum_of_rows(gradient).into(),
        ]
        .into_iter()
        .zip(&inputs);
        [(); N].map(|()| {
            all.next()
                .map(|(found, input)| found.in_type(input.dtype()))
        })
    })
}

fn kernel<const N: usize>(inputs: [AnyTensor; N], epsilon: f32) -> Computed<N> {
    let x = &inputs[0];
    let (shape, row) = (x.shape(), inputs[1].shape().num_elements());
    let elements = inputs.each_ref().map(Elements::contiguous);
    let rows = shape.num_elements() / row.max(1);
    let task = rows_of_task(row);
    let (mut y, mut numbers) = (vec![0.0; rows * row], vec![[0.0; 2]; rows]);
    let beta = if N == 3 { elements[2].get() } else { &[] };
    y.par_chunks_mut(task * row.max(1))
        .zip(numbers.par_chunks_mut(task))
        .zip(elements[0].get()[..rows * row].par_chunks(task * row.max(1)))
        .for_each(|((y, numbers), x)| {
            normalize(x, elements[1].get(), beta, y, numbers, epsilon);
        });
    let output = tensor(y, shape.clone(), x);
    Computed::new(output, move |gradient| {
        let elements = inputs.each_ref().map(Elements::contiguous);
        let gradients = Elements::contiguous(&gradient);
        let mut of_x = vec![0.0; rows * row];
        let tasks = of_x.par_chunks_mut(task * row.max(1)).enumerate();
        let of_tasks = tasks.map(|(index, of_x)| {
            let range = index * task * row..index * task * row + of_x.len();
            let (mut of_gamma, mut of_beta) = (vec![0.0; row], vec![0.0; row]);
            gradients_of_rows(
                &elements[0].get()[range.clone()],
                &gradients.get()[range],
                elements[1].get(),
                &numbers[index * task..],
                of_x,
                &mut of_gamma,
                &mut of_beta,
            );
            [of_gamma, of_beta]
        });
        let [of_gamma, of_beta] = sum_of_tasks(of_tasks.collect(), row);
        let of_x = tensor(of_x, shape, &inputs[0]);
        let of_gamma = tensor(of_gamma, [row], &inputs[1]);
        let of_beta = (N == 3).then(|| tensor(of_beta, [row], &inputs[N - 1]));
        let mut all = [Some(of_x), Some(of_gamma), of_beta].into_iter();
        [(); N].map(|()| all.next().flatten())
    })
}

vectorized! {
    fn normalize(
        x: &[f32],
        gamma: &[f32],
        beta: &[f32],
        y: &mut [f32],
        numbers: &mut [[f32; 2]],
        epsilon: f32,
    ) -> () {
        let row = x.len() / numbers.len();
        for (index, numbers) in numbers.iter_mut().enumerate() {
            let x = &x[index * row..][..row];
            let y = &mut y[index * row..][..row];
            let mean = sum(x) / row as f32;
            for (y, x) in y.iter_mut().zip(x) {
                *y = x - mean;
            }
            let r = 1.0 / (dot(y, y) / row as f32 + epsilon).sqrt();
            *numbers = [mean, r];
            for (y, gamma) in y.iter_mut().zip(gamma) {
                *y *= r * gamma;
            }
            for (y, beta) in y.iter_mut().zip(beta) {
                *y += beta;
            }
        }
    }
}

vectorized! {
    fn gradients_of_rows(
        x: &[f32],
        gradient: &[f32],
        gamma: &[f32],
        numbers: &[[f32; 2]],
        of_x: &mut [f32],
        of_gamma: &mut [f32],
        of_beta: &mut [f32],
    ) -> () {
        let row = of_gamma.len();
        let (gamma, of_beta) = (&gamma[..row], &mut of_beta[..row]);
        for index in 0..x.len() / row {
            let x = &x[index * row..][..row];
            let gradient = &gradient[index * row..][..row];
            let of_x = &mut of_x[index * row..][..row];
            let [mean, r] = numbers[index];
            for column in 0..row {
                of_x[column] = gradient[column] * gamma[column];
                of_gamma[column] += gradient[column] * (x[column] - mean) * r;
                of_beta[column] += gradient[column];
            }
            let of_all = sum(of_x) / row as f32;
            let of_normed = dot_shifted(of_x, x, mean) * (r * r / row as f32);
            for (of_x, x) in of_x.iter_mut().zip(x) {
                *of_x = (*of_x - of_all - (x - mean) * of_normed) * r;
            }
        }
    }
}
