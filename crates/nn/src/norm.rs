//! Root mean square norm, and layer norm.

use backburn_base::{AnyTensor, in_type};
use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::check_shape;
use crate::elements::{Elements, dense, have_kernel, rows_of_task, sum_of_tasks, tensor, wide};
use crate::node::{Computed, operation, recomputed};
use crate::simd::{dot, reduce, sum, vectorized};

/// Normalizes the last dimension of `x` as [`RmsNorm::forward`] does:
/// `y = x / sqrt(mean(x^2) + epsilon) * gamma` ([Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467)).
///
/// For the backward pass it keeps `x`, and recomputes `r = 1 / sqrt(mean(x^2) + epsilon)` and the normalized row `n = x * r`. With `g`
/// for the gradient of `y` times `gamma`, the gradient of `x` is `r * (g - n * mean(g * n))`. That of `gamma` is the gradient of `y`
/// times `n`, summed over the rows.
///
/// # Panics
///
/// If the last dimension of `x` is not that of the norm.
pub fn rms_norm<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    let kind = Norm {
        epsilon: norm.epsilon,
        is_centered: false,
    };
    kind.of([x.into(), dense(norm.gamma.val()).into()])
}

/// Normalizes the last dimension of `x` as [`LayerNorm::forward`] does:
/// `y = (x - mean(x)) / sqrt(var(x) + epsilon) * gamma + beta` ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)).
/// `epsilon` must be that of the config of `norm`, whose field is private (1e-5 by default).
///
/// For the backward pass it keeps `x`, and recomputes `r = 1 / sqrt(var(x) + epsilon)` and the normalized row
/// `n = (x - mean(x)) * r`. With `g` for the gradient of `y` times `gamma`, the gradient of `x` is
/// `r * (g - mean(g) - n * mean(g * n))`. Those of `gamma` and `beta` are the gradient of `y` times `n`, and the gradient of `y`,
/// summed over the rows.
///
/// # Panics
///
/// If the last dimension of `x` is not that of the norm.
pub fn layer_norm<const D: usize>(norm: &LayerNorm, epsilon: f64, x: Tensor<D>) -> Tensor<D> {
    let kind = Norm {
        epsilon,
        is_centered: true,
    };
    let (x, gamma) = (x.into(), dense(norm.gamma.val()).into());
    match &norm.beta {
        Some(beta) => kind.of([x, gamma, dense(beta.val()).into()]),
        None => kind.of([x, gamma]),
    }
}

#[derive(Clone, Copy)]
struct Norm {
    epsilon: f64,
    /// Subtracts the mean, as the layer norm does.
    is_centered: bool,
}

impl Norm {
    /// Normalizes the rows of `x`, the first of `inputs`. The others are `gamma`, and maybe `beta`.
    fn of<const D: usize, const N: usize>(self, inputs: [AnyTensor; N]) -> Tensor<D> {
        let row = *inputs[0].shape().last().unwrap_or(&0);
        for (input, name) in inputs[1..].iter().zip(["`gamma`", "`beta`"]) {
            check_shape(&format!("{name} of `norm`"), input.dims(), [row], "`x`");
        }
        let compose = move |inputs| self.composed::<D, N>(inputs).into();
        let run = |inputs: [AnyTensor; N], needed| match have_kernel(&inputs) {
            true => self.kernel(inputs),
            false => recomputed(inputs, needed, compose),
        };
        operation(inputs, run, compose).of_dims()
    }

    fn composed<const D: usize, const N: usize>(self, inputs: [AnyTensor; N]) -> Tensor<D> {
        let dtype = inputs[0].dtype();
        let x = in_type(inputs[0].clone().of_dims::<D>(), wide(dtype));
        let weight = |index: usize| in_type(inputs[index].0.clone(), wide(dtype)).unsqueeze();
        let x = match self.is_centered {
            true => x.clone() - x.mean_dim(D - 1),
            false => x,
        };
        let squares = x.clone().square().mean_dim(D - 1);
        let r = squares.add_scalar(self.epsilon).sqrt().recip();
        let scaled = x * r * weight(1);
        let output = if N == 3 { scaled + weight(2) } else { scaled };
        in_type(output, dtype)
    }

    fn kernel<const N: usize>(self, inputs: [AnyTensor; N]) -> Computed {
        let (shape, row) = (inputs[0].shape(), inputs[1].shape().num_elements());
        let length = shape.num_elements();
        let task = rows_of_task(length, row) * row.max(1);
        let elements = inputs.each_ref().map(Elements::contiguous);
        let gamma = elements[1].get();
        let beta = elements.get(2).map_or(&[][..], Elements::get);
        let mut y = vec![0.0; length];
        y.par_chunks_mut(task)
            .zip(elements[0].get().par_chunks(task))
            .for_each(|(y, x)| normalize(self, x, gamma, beta, y));
        let output = tensor(y, shape.clone(), &inputs[0]);
        Computed::new(output, move |gradient| {
            let elements = inputs.each_ref().map(Elements::contiguous);
            let gamma = elements[1].get();
            let gradients = Elements::contiguous(&gradient);
            let mut dx = vec![0.0; length];
            let rows = elements[0].get().par_chunks(task);
            let rows = rows.zip(gradients.get().par_chunks(task));
            let tasks = dx.par_chunks_mut(task).zip(rows);
            let tasks = tasks.map(|(dx, (x, gradient))| {
                let mut sums = vec![0.0; (N - 1) * row];
                gradients_of_rows(self, x, gradient, gamma, dx, &mut sums);
                sums
            });
            let mut sums = sum_of_tasks(tasks.collect(), (N - 1) * row);
            let dbeta = sums.split_off(row);
            let mut all = [dx, sums, dbeta].into_iter();
            inputs.map(|like| all.next().map(|found| tensor(found, like.shape(), &like)))
        })
    }
}

/// Returns the mean that is subtracted from a row, and the factor `r`.
#[inline(always)]
fn statistics(norm: Norm, x: &[f32]) -> [f32; 2] {
    let count = x.len() as f32;
    let mean = if norm.is_centered {
        sum(x) / count
    } else {
        0.0
    };
    let variance = dot(x, x, [mean; 2]) / count;
    [mean, 1.0 / (variance + norm.epsilon as f32).sqrt()]
}

vectorized! {
    fn normalize(norm: Norm, x: &[f32], gamma: &[f32], beta: &[f32], y: &mut [f32]) -> () {
        let row = gamma.len();
        for (x, y) in x.chunks_exact(row).zip(y.chunks_exact_mut(row)) {
            let [mean, r] = statistics(norm, x);
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = (x - mean) * r * gamma;
            }
            for (y, beta) in y.iter_mut().zip(beta) {
                *y += beta;
            }
        }
    }
}

vectorized! {
    /// Computes the gradients of `x`, and adds those of `gamma` and `beta`, which are one after the other in `sums`.
    fn gradients_of_rows(
        norm: Norm,
        x: &[f32],
        gradient: &[f32],
        gamma: &[f32],
        dx: &mut [f32],
        sums: &mut [f32],
    ) -> () {
        let row = gamma.len();
        let (dgamma, dbeta) = sums.split_at_mut(row);
        let rows = x.chunks_exact(row).zip(gradient.chunks_exact(row));
        for ((x, gradient), dx) in rows.zip(dx.chunks_exact_mut(row)) {
            let [mean, r] = statistics(norm, x);
            for column in 0..row {
                dx[column] = gradient[column] * gamma[column];
                dgamma[column] += gradient[column] * ((x[column] - mean) * r);
            }
            for (sum, gradient) in dbeta.iter_mut().zip(gradient) {
                *sum += gradient;
            }
            let mut dmean = if norm.is_centered { sum(dx) / row as f32 } else { 0.0 };
            let along = reduce!(0.0, add: g in dx, x in x => (g - dmean) * ((x - mean) * r)) / row as f32;
            if norm.is_centered {
                // The mean is rounded: `x - mean` has a mean, too.
                dmean -= reduce!(0.0, add: x in x => (x - mean) * r) / row as f32 * along;
            }
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = (*dx - dmean - (x - mean) * r * along) * r;
            }
        }
    }
}
