//! Head and loss on `flex`. The logits of a chunk are overwritten by their gradient.

use std::ops::Range;

use backburn_base::{AnyTensor, of_data};
use burn::tensor::{DType, Tensor, TensorData};
use rayon::prelude::*;

use super::Problem;
use crate::elements::{Elements, have_kernel, scaled, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{Matrix, ON_POOL, multiply};
use crate::simd::{exp, max, sum_of, tanh, vectorized};

/// Elements of a part of a head in a half type.
const TILE: usize = 1024 * 1024;

impl Problem {
    /// Returns `true` if the kernel computes with these tensors.
    pub(super) fn has_kernel(&self, inputs: &[AnyTensor; 2]) -> bool {
        have_kernel(inputs) && self.classes > 0 && self.d_model > 0
    }

    /// Returns the tokens that are not ignored, with their target and weight.
    fn counted(&self) -> Vec<(usize, Row)> {
        let targets = self.targets.clone().into_data();
        let targets: Vec<i64> = targets.iter().collect();
        let weights = self.weights.clone();
        let weights = weights.map_or_else(
            || vec![1.0; self.tokens],
            |weights| weights.into_data().iter().collect(),
        );
        let all = targets.into_iter().zip(weights).enumerate();
        let counted = all.filter(|(_, (target, _))| Some(*target) != self.options.ignored);
        counted
            .map(|(token, (target, weight))| {
                let class = usize::try_from(target).ok();
                let target = class.filter(|class| *class < self.classes).unwrap_or_else(|| {
                    panic!(
                        "`targets` has {target}, which is not one of the {} classes of the head: check the tokenizer, or set it as `ignored`",
                        self.classes
                    )
                });
                (token, Row { target, weight })
            })
            .collect()
    }

    /// Returns the head in f32, with the classes of each part: all of it, or in parts if it has a half type, so that there is no copy
    /// of twice its bytes.
    fn tiles(&self, weight: &AnyTensor) -> impl Iterator<Item = (Range<usize>, Elements)> {
        let size = match weight.dtype() {
            DType::F32 => self.classes,
            _ => (TILE / self.d_model).max(1),
        };
        let weight: Tensor<2> = weight.clone().of_rank();
        (0..self.classes).step_by(size).map(move |start| {
            let tile = start..self.classes.min(start + size);
            let part = weight.clone().slice(tile.clone());
            (tile, Elements::strided(&part.into()))
        })
    }

    pub(super) fn kernel(&self, [hidden, weight]: [AnyTensor; 2], needed: [bool; 2]) -> Computed {
        let (tokens, classes, d_model) = (self.tokens, self.classes, self.d_model);
        let counted = self.counted();
        let states = Elements::rows(&hidden);
        // The gradient has the layout of the weight.
        let is_transposed =
            weight.dtype() == DType::F32 && Elements::strided(&weight).is_transposed();
        let size = self.options.chunk_size.min(counted.len());
        let (mut logits, mut chunk) = (vec![0.0; size * classes], vec![0.0; size * d_model]);
        let mut of_hidden = vec![0.0; if needed[0] { tokens * d_model } else { 0 }];
        let mut of_weight = vec![0.0; if needed[1] { classes * d_model } else { 0 }];
        let mut loss = 0.0;
        for counted in counted.chunks(size.max(1)) {
            let count = counted.len();
            let (logits, chunk) = (
                &mut logits[..count * classes],
                &mut chunk[..count * d_model],
            );
            for (state, (token, _)) in chunk.chunks_mut(d_model).zip(counted) {
                state.copy_from_slice(states.row(&[*token]));
            }
            let states = Matrix::new(chunk, count, d_model);
            for (tile, head) in self.tiles(&weight) {
                let head = head.matrix(&[]).transposed();
                let to = &mut logits[tile.start..];
                multiply(to, classes, states, head, Set(1.0), ON_POOL);
            }
            let rows = logits.par_chunks_mut(classes).zip(counted);
            let losses = rows.map(|(logits, (_, row))| self.row(logits, *row, needed));
            let losses: Vec<f32> = losses.collect();
            loss += losses.into_iter().map(f64::from).sum::<f64>();
            if needed[1] {
                let logits = Matrix::new(logits, count, classes);
                let [a, b] = match is_transposed {
                    true => [states, logits],
                    false => [logits, states],
                };
                let row = b.sizes[1];
                multiply(&mut of_weight, row, a.transposed(), b, Add, ON_POOL);
            }
            if needed[0] {
                for (tile, head) in self.tiles(&weight) {
                    let head = head.matrix(&[]);
                    let mut logits = Matrix::new(&logits[tile.start..], count, classes);
                    logits.sizes[1] = tile.len();
                    let effect = if tile.start == 0 { Set(1.0) } else { Add };
                    multiply(chunk, d_model, logits, head, effect, ON_POOL);
                }
                for (state, (token, _)) in chunk.chunks(d_model).zip(counted) {
                    of_hidden[token * d_model..][..d_model].copy_from_slice(state);
                }
            }
        }
        let loss = TensorData::new(vec![loss as f32], [1]);
        let output = AnyTensor(of_data(loss, &hidden.device()));
        // Of the inputs, only type and device are kept.
        let [like_hidden, like_weight] = [hidden, weight].map(|it| {
            let empty = Tensor::<1>::zeros([0], (&it.device(), it.dtype()));
            AnyTensor::from(empty)
        });
        Computed::new(output, move |gradient| {
            let factor: f32 = gradient.0.into_data().iter().next().unwrap_or(0.0);
            let of_hidden = needed[0].then(|| {
                let mut of_hidden = scaled(of_hidden, factor);
                if !factor.is_finite() {
                    let mut is_ignored = vec![true; tokens];
                    counted
                        .iter()
                        .for_each(|(token, _)| is_ignored[*token] = false);
                    let rows = of_hidden.chunks_mut(d_model.max(1)).zip(is_ignored);
                    // As in Burn, for example if the loss is the mean over no token.
                    rows.filter(|row| row.1).for_each(|(row, _)| row.fill(0.0));
                }
                tensor(of_hidden, [tokens, d_model], &like_hidden)
            });
            let of_weight = needed[1].then(|| {
                let factor = if counted.is_empty() { 1.0 } else { factor };
                let of_weight = scaled(of_weight, factor);
                match is_transposed {
                    true => {
                        let of_weight = tensor(of_weight, [d_model, classes], &like_weight);
                        of_weight.of_rank::<2>().transpose().into()
                    }
                    false => tensor(of_weight, [classes, d_model], &like_weight),
                }
            });
            [of_hidden, of_weight]
        })
    }

    /// Replaces the logits of a token by their gradients, if one is needed. Returns the loss.
    fn row(&self, logits: &mut [f32], row: Row, needed: [bool; 2]) -> f32 {
        let Row { target, weight } = row;
        let cap = self.options.soft_cap.map(|cap| cap as f32);
        let smoothing = self.options.smoothing as f32;
        if let Some(cap) = cap {
            capped(logits, cap);
        }
        // With a cap the row now has `tanh(logits / cap)`.
        let scale = cap.unwrap_or(1.0);
        let of_target = logits[target];
        let (largest, all) = exponentials(logits, scale);
        // Differences to the largest logit, as in `log_softmax`: a large logit would round a small loss.
        let mut expected = of_target * scale - largest;
        if smoothing != 0.0 {
            let mean = sum_of_differences(logits, scale, largest) / self.classes as f32;
            expected = expected * (1.0 - smoothing) + mean * smoothing;
        }
        if needed.contains(&true) {
            let even = weight * smoothing / self.classes as f32;
            gradients(logits, cap, largest, weight / all, even);
            logits[target] -= weight * (1.0 - smoothing) * slope(of_target, cap);
        }
        (all.ln() - expected) * weight
    }
}

/// The target of a token, and the factor of its loss.
#[derive(Clone, Copy)]
struct Row {
    target: usize,
    weight: f32,
}

vectorized! {
    fn capped(logits: &mut [f32], cap: f32) -> () {
        for logit in logits {
            *logit = tanh(*logit / cap);
        }
    }
}

vectorized! {
    /// Returns the sum of the differences of the logits to the largest.
    fn sum_of_differences(logits: &[f32], scale: f32, largest: f32) -> f32 {
        sum_of!(logit in logits => logit * scale - largest)
    }
}

vectorized! {
    /// Returns the largest logit, and the sum of the exponentials of the differences to it.
    fn exponentials(logits: &[f32], scale: f32) -> (f32, f32) {
        let largest = max(logits) * scale;
        (largest, sum_of!(logit in logits => exp(logit * scale - largest)))
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
    /// Replaces logits, or their `tanh`, by the gradients of the loss, without the term of the target.
    fn gradients(
        logits: &mut [f32],
        cap: Option<f32>,
        largest: f32,
        share: f32,
        even: f32,
    ) -> () {
        let scale = cap.unwrap_or(1.0);
        for logit in logits {
            let gradient = exp(*logit * scale - largest) * share - even;
            *logit = gradient * slope(*logit, cap);
        }
    }
}
