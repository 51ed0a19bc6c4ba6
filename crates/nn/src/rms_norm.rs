//! Root mean square norm.

use backburn_base::{AnyTensor, in_type};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::elements::{Elements, have_kernel, rows_of_task, sum_of_tasks, tensor};
use crate::node::{Computed, operation};
use crate::simd::{dot, vectorized};
use crate::whole::{sum_of_rows, wide};

/// Normalizes the last dimension of `x` as [`RmsNorm::forward`] does:
/// `y = x / sqrt(mean(x^2) + epsilon) * gamma` ([Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467)).
///
/// For the backward pass it keeps `x` and one number a row, `r = 1 / sqrt(mean(x^2) + epsilon)`. With `g` for the gradient of `y`
/// times `gamma`, the gradient of `x` is `r * (g - x * r^2 * mean(g * x))`. That of `gamma` is the gradient of `y` times `x * r`,
/// summed over the rows.
///
/// # Panics
///
/// If the last dimension of `x` is not that of the norm.
pub fn rms_norm<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    let [d_model] = norm.gamma.shape().dims();
    let shape = x.dims();
    assert!(
        shape[D - 1] == d_model,
        "the last dimension of the input is {}: it must be that of the norm, {d_model}",
        shape[D - 1]
    );
    let inputs = [x.into(), norm.gamma.val().into()];
    let epsilon = norm.epsilon;
    let run = |inputs: [AnyTensor; 2], _| match have_kernel(&inputs) {
        true => kernel(inputs, d_model, epsilon as f32),
        false => operations::<D>(inputs, epsilon),
    };
    operation(inputs, run, |[x, gamma]| {
        let (x, gamma) = (x.of_rank::<D>(), gamma.of_rank());
        forward(x, gamma, epsilon).0.into()
    })
    .of_rank()
}

/// Computes the norm, and `r`.
fn forward<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> (Tensor<D>, Tensor<D>) {
    let dtype = x.dtype();
    let x = in_type(x, wide(dtype));
    let squares = x.clone().square().mean_dim(D - 1);
    let r = squares.add_scalar(epsilon).sqrt().recip();
    let gamma = in_type(gamma, x.dtype());
    (in_type(x * r.clone() * gamma.unsqueeze(), dtype), r)
}

fn operations<const D: usize>([x, gamma]: [AnyTensor; 2], epsilon: f64) -> Computed<2> {
    let (x, gamma) = (x.of_rank::<D>(), gamma.of_rank::<1>());
    let (output, r) = forward(x.clone(), gamma.clone(), epsilon);
    Computed::new(output.into(), move |gradient| {
        let dtypes = [x.dtype(), gamma.dtype()];
        let dtype = wide(x.dtype());
        let [x, gradient] = [x, gradient.of_rank()].map(|it| in_type(it, dtype));
        let normed = x * r.clone();
        let of_gamma = sum_of_rows(gradient.clone() * normed.clone());
        let scaled = gradient * in_type(gamma, dtype).unsqueeze();
        let mean = (scaled.clone() * normed.clone()).mean_dim(D - 1);
        let of_x = (scaled - normed * mean) * r;
        [
            Some(in_type(of_x, dtypes[0]).into()),
            Some(in_type(of_gamma, dtypes[1]).into()),
        ]
    })
}

fn kernel([x, gamma]: [AnyTensor; 2], row: usize, epsilon: f32) -> Computed<2> {
    let shape = x.shape();
    let (elements, scale) = (Elements::contiguous(&x), Elements::contiguous(&gamma));
    let rows = shape.num_elements() / row.max(1);
    let task = rows_of_task(row);
    let (mut y, mut r) = (vec![0.0; rows * row], vec![0.0; rows]);
    let all = elements.get()[..rows * row].par_chunks(task * row.max(1));
    y.par_chunks_mut(task * row.max(1))
        .zip(r.par_chunks_mut(task))
        .zip(all)
        .for_each(|((y, r), x)| normalize(x, scale.get(), y, r, epsilon));
    let output = tensor(y, shape.clone(), &x);
    Computed::new(output, move |gradient| {
        let (elements, scale) = (Elements::contiguous(&x), Elements::contiguous(&gamma));
        let gradients = Elements::contiguous(&gradient);
        let mut of_x = vec![0.0; rows * row];
        let tasks = of_x.par_chunks_mut(task * row.max(1)).enumerate();
        let of_tasks = tasks.map(|(index, of_x)| {
            let range = index * task * row..index * task * row + of_x.len();
            let mut of_gamma = vec![0.0; row];
            gradients_of_rows(
                &elements.get()[range.clone()],
                &gradients.get()[range],
                scale.get(),
                &r[index * task..],
                of_x,
                &mut of_gamma,
            );
            [of_gamma]
        });
        let [of_gamma] = sum_of_tasks(of_tasks.collect(), row);
        [
            Some(tensor(of_x, shape, &x)),
            Some(tensor(of_gamma, [row], &gamma)),
        ]
    })
}

vectorized! {
    fn normalize(x: &[f32], gamma: &[f32], y: &mut [f32], r: &mut [f32], epsilon: f32) -> () {
        let row = x.len() / r.len();
        for (index, r) in r.iter_mut().enumerate() {
            let x = &x[index * row..][..row];
            let y = &mut y[index * row..][..row];
            *r = 1.0 / (dot(x, x) / row as f32 + epsilon).sqrt();
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * *r * gamma;
            }
        }
    }
}

vectorized! {
    fn gradients_of_rows(
        x: &[f32],
        gradient: &[f32],
        gamma: &[f32],
        r: &[f32],
        of_x: &mut [f32],
        of_gamma: &mut [f32],
    ) -> () {
        let row = of_gamma.len();
        let gamma = &gamma[..row];
        for index in 0..x.len() / row {
            let x = &x[index * row..][..row];
            let gradient = &gradient[index * row..][..row];
            let of_x = &mut of_x[index * row..][..row];
            let r = r[index];
            for column in 0..row {
                of_x[column] = gradient[column] * gamma[column];
                of_gamma[column] += gradient[column] * x[column] * r;
            }
            let mean = dot(of_x, x) * (r * r / row as f32);
            for (of_x, x) in of_x.iter_mut().zip(x) {
                *of_x = (*of_x - x * mean) * r;
            }
        }
    }
}
