//! Head and loss on `flex`. The logits of a chunk are overwritten by their gradient.

use backburn_base::{AnyTensor, of_data};
use burn::tensor::{DType, Tensor, TensorData};
use rayon::prelude::*;

use super::Problem;
use crate::elements::{Elements, is_transposed, scaled, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{Matrix, ON_POOL, multiply};
use crate::simd::{exp, max, reduce, tanh, vectorized};

/// Elements of a tile of a head in a half type.
const TILE: usize = 1024 * 1024;

/// Elements of a tile of the gradient of a head. With fewer, the logits are read more often.
const GRADIENT_TILE: usize = 4 * TILE;

/// A token that is not ignored, with its target and the factor of its loss.
#[derive(Clone, Copy)]
struct Row {
    token: usize,
    target: usize,
    weight: f32,
}

impl Problem {
    /// Returns the tokens that are not ignored.
    fn counted(&self, classes: usize) -> Vec<Row> {
        let weights = self.weights.clone().map(Tensor::into_data);
        let weights = weights.map(|weights| weights.iter().collect::<Vec<f32>>());
        let targets = self.targets.clone().into_data();
        let targets = targets.iter::<i64>().enumerate();
        let counted = targets.filter(|(_, target)| Some(*target) != self.options.ignored);
        let rows = counted.map(|(token, target)| {
            let class = usize::try_from(target).ok();
            let class = class.filter(|class| *class < classes);
            let class = class.unwrap_or_else(|| {
                panic!(
                    "`targets` has {target}, which is not one of the {classes} classes of the head: check the tokenizer, or set it as `ignored`"
                )
            });
            Row {
                token,
                target: class,
                weight: weights.as_ref().map_or(1.0, |weights| weights[token]),
            }
        });
        rows.collect()
    }

    pub(super) fn kernel(&self, [hidden, weight]: [AnyTensor; 2], needed: [bool; 2]) -> Computed {
        let ([tokens, d_model], classes) = (hidden.shape().dims(), weight.shape()[0]);
        let cap = self.options.soft_cap.map(|cap| cap as f32);
        let smoothing = self.options.smoothing as f32;
        let counted = self.counted(classes);
        let states = Elements::rows(&hidden);
        // The gradient has the layout of the weight.
        let is_transposed = is_transposed(&weight);
        let size = self.options.chunk_size.min(counted.len());
        let row = if is_transposed { classes } else { d_model };
        let tile = (GRADIENT_TILE / row).max(1) * row;
        let (mut logits, mut chunk) = (vec![0.0; size * classes], vec![0.0; size * d_model]);
        let mut dhidden = vec![0.0; if needed[0] { tokens * d_model } else { 0 }];
        // A gradient in a half type has a buffer for each tile, which is freed when it is converted.
        let buffer = match weight.dtype() {
            DType::F32 => usize::MAX,
            _ => tile,
        };
        let mut dweight = zeros(if needed[1] { classes * d_model } else { 0 }, buffer);
        let mut loss = 0.0;
        for rows in counted.chunks(size.max(1)) {
            for (state, row) in chunk.chunks_mut(d_model).zip(rows) {
                state.copy_from_slice(states.row(&[row.token]));
            }
            let states = Matrix::new(&chunk, rows.len(), d_model);
            for_tiles(&weight, is_transposed, |start, head| {
                let to = &mut logits[start..];
                multiply(to, classes, states, head.transposed(), Set(1.0), ON_POOL);
            });
            let losses = logits.par_chunks_mut(classes).zip(rows);
            let losses = losses.map(|(logits, row)| {
                gradients(logits, *row, cap, smoothing, needed.contains(&true))
            });
            let losses: Vec<f32> = losses.collect();
            loss += losses.into_iter().map(f64::from).sum::<f64>();
            if needed[1] {
                let logits = Matrix::new(&logits, rows.len(), classes);
                let [a, b] = match is_transposed {
                    true => [states, logits],
                    false => [logits, states],
                };
                // In tiles of rows, because `gemm` copies the whole of `a`.
                let tiles = dweight.iter_mut();
                let tiles = tiles.flat_map(|buffer| buffer.chunks_mut(tile));
                for (index, to) in tiles.enumerate() {
                    let start = index * tile / row;
                    let a = a.transposed().part(&(start..start + to.len() / row));
                    multiply(to, row, a, b, Add, ON_POOL);
                }
            }
            if needed[0] {
                for_tiles(&weight, is_transposed, |start, head| {
                    let mut logits = Matrix::new(&logits[start..], rows.len(), classes);
                    logits.sizes[1] = head.sizes[0];
                    let effect = if start == 0 { Set(1.0) } else { Add };
                    multiply(&mut chunk, d_model, logits, head, effect, ON_POOL);
                });
                for (state, row) in chunk.chunks(d_model).zip(rows) {
                    dhidden[row.token * d_model..][..d_model].copy_from_slice(state);
                }
            }
        }
        let loss = TensorData::new(vec![loss as f32], [1]);
        let output = AnyTensor(of_data(loss, &hidden.device()));
        // Keeps only type and device of the inputs.
        let [like_hidden, like_weight] = [hidden, weight].map(|it| {
            let empty = Tensor::<1>::zeros([0], (&it.device(), it.dtype()));
            AnyTensor::from(empty)
        });
        Computed::new(output, move |gradient| {
            let factor: f32 = gradient.0.into_data().iter().next().unwrap_or(0.0);
            let dhidden = needed[0].then(|| {
                // Ignored tokens stay zero if the factor is infinite, as in Burn, for example if the loss is the mean over no token.
                let mut factors = vec![0.0; tokens];
                counted.iter().for_each(|row| factors[row.token] = factor);
                let rows = dhidden.par_chunks_mut(d_model).zip(factors);
                rows.for_each(|(row, factor)| row.iter_mut().for_each(|it| *it *= factor));
                tensor(dhidden, [tokens, d_model], &like_hidden)
            });
            let dweight = needed[1].then(|| {
                let factor = if counted.is_empty() { 1.0 } else { factor };
                // One by one, so that a buffer of f32 is freed when it is converted. A single one is not copied.
                let parts = dweight.into_iter().map(|part| {
                    let shape = [part.len() / row, row];
                    tensor(scaled(part, factor), shape, &like_weight).of_dims::<2>()
                });
                let dweight = Tensor::cat(parts.collect(), 0);
                match is_transposed {
                    true => dweight.transpose().into(),
                    false => dweight.into(),
                }
            });
            [dhidden, dweight]
        })
    }
}

/// Returns `count` zeros in buffers of `size` elements; the last one may be smaller.
fn zeros(count: usize, size: usize) -> Vec<Vec<f32>> {
    let starts = (0..count).step_by(size);
    let buffers = starts.map(|start| vec![0.0; size.min(count - start)]);
    buffers.collect()
}

/// Runs `run` with the first class of each part of the head and the part in f32, a row for each class: all of it, or in parts if it has
/// a half type, so that there is no copy of twice its bytes.
fn for_tiles(weight: &AnyTensor, is_transposed: bool, mut run: impl FnMut(usize, Matrix<'_>)) {
    let [classes, d_model] = weight.shape().dims();
    let size = match weight.dtype() {
        DType::F32 => classes,
        _ => (TILE / d_model).max(1),
    };
    let weight: Tensor<2> = weight.clone().of_dims();
    for start in (0..classes).step_by(size) {
        let part = weight.clone().slice(start..classes.min(start + size));
        // Copied in the order of its memory.
        let part = if is_transposed {
            part.transpose()
        } else {
            part
        };
        let part = Elements::strided(&part.into());
        let part = part.matrix(&[]);
        run(
            start,
            if is_transposed {
                part.transposed()
            } else {
                part
            },
        );
    }
}

/// Returns the derivative of the soft cap, if there is one, from its `tanh`.
#[inline(always)]
fn slope(tanh: f32, cap: Option<f32>) -> f32 {
    match cap {
        Some(_) => 1.0 - tanh * tanh,
        None => 1.0,
    }
}

vectorized! {
    /// Replaces the logits of a token by their gradients, if one is needed. Returns the loss.
    fn gradients(
        logits: &mut [f32],
        row: Row,
        cap: Option<f32>,
        smoothing: f32,
        is_needed: bool,
    ) -> f32 {
        let Row { target, weight, .. } = row;
        let (classes, scale) = (logits.len() as f32, cap.unwrap_or(1.0));
        if let Some(cap) = cap {
            // The logits are `tanh(logits / cap)` from here on.
            for logit in logits.iter_mut() {
                *logit = tanh(*logit / cap);
            }
        }
        let target_logit = logits[target];
        let largest = max(logits) * scale;
        let all = reduce!(0.0, add: logit in logits => exp(logit * scale - largest));
        // Differences to the largest logit, as in `log_softmax`: a large logit would round a small loss.
        let mut expected = target_logit * scale - largest;
        if smoothing != 0.0 {
            let mean = reduce!(0.0, add: logit in logits => logit * scale - largest) / classes;
            expected = expected * (1.0 - smoothing) + mean * smoothing;
        }
        if is_needed {
            let (share, even) = (weight / all, weight * smoothing / classes);
            for logit in logits.iter_mut() {
                let gradient = exp(*logit * scale - largest) * share - even;
                *logit = gradient * slope(*logit, cap);
            }
            logits[target] -= weight * (1.0 - smoothing) * slope(target_logit, cap);
        }
        (all.ln() - expected) * weight
    }
}
