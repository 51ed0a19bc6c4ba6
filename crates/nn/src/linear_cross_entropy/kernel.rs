//! Head and loss on `flex`. The logits of a chunk are overwritten by their gradient.

use backburn_base::{AnyTensor, of_data};
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use super::Problem;
use crate::elements::{Elements, TASK, have_kernel, tensor};
use crate::node::Computed;
use crate::product::Effect::{Add, Set};
use crate::product::{Shape, multiply_on_pool};
use crate::simd::{LANES, exp, max, sum, tanh, total, vectorized};

/// Classes whose exponentials are added up before they are added to the sum, which bounds its rounding.
const BLOCK: usize = 1024;

impl Problem {
    /// Returns `true` if the kernel computes with these tensors. It reads a head in a half type as a copy in f32, for all chunks.
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
                        "the target {target} is not one of the {} classes of the head: check the tokenizer, or set it as `ignored`",
                        self.classes
                    )
                });
                (token, Row { target, weight })
            })
            .collect()
    }

    pub(super) fn kernel(
        &self,
        [hidden, weight]: [AnyTensor; 2],
        needed: [bool; 2],
    ) -> Computed<2> {
        let (tokens, classes, d_model) = (self.tokens, self.classes, self.d_model);
        let counted = self.counted();
        let states = Elements::rows(&hidden);
        let [of_token, _] = states.strides();
        let head = Elements::strided(&weight);
        let [of_class, of_column] = head.strides();
        let head = (
            head.get(),
            Shape::with_strides([classes, d_model], [of_class, of_column]),
        );
        // The gradient has the layout of the weight.
        let is_transposed = of_column != 1 && of_class == 1;
        let of_head = match is_transposed {
            true => Shape::with_strides([classes, d_model], [1, classes]),
            false => Shape::new(classes, d_model, d_model),
        };
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
                state.copy_from_slice(&states.get()[token * of_token..][..d_model]);
            }
            let shape = Shape::new(count, classes, classes);
            let of_chunk = Shape::new(count, d_model, d_model);
            let transposed = (head.0, head.1.transposed());
            let states = (&*chunk, of_chunk);
            multiply_on_pool((logits, shape), states, transposed, Set(1.0));
            let rows = logits.par_chunks_mut(classes).zip(counted);
            let losses = rows.map(|(logits, (_, row))| self.row(logits, *row, needed));
            let losses: Vec<f32> = losses.collect();
            loss += losses.into_iter().map(f64::from).sum::<f64>();
            if needed[1] {
                let transposed = (&*logits, shape.transposed());
                let to = (&mut *of_weight, of_head);
                multiply_on_pool(to, transposed, states, Add);
            }
            if needed[0] {
                multiply_on_pool((chunk, of_chunk), (logits, shape), head, Set(1.0));
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
            let factor = gradient.0.into_data().iter().next().unwrap_or(0.0);
            let of_hidden = needed[0]
                .then(|| tensor(scaled(of_hidden, factor), [tokens, d_model], &like_hidden));
            let of_weight = needed[1].then(|| {
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
        let mut expected = of_target * (1.0 - smoothing);
        if smoothing != 0.0 {
            expected += sum_of_blocks(logits) / self.classes as f32 * smoothing;
        }
        let (largest, all) = exponentials(logits, scale);
        if needed.contains(&true) {
            let even = weight * smoothing / self.classes as f32;
            let of_one = weight * (1.0 - smoothing);
            match cap {
                Some(_) => {
                    capped_gradients(logits, scale, largest, weight / all, even);
                    logits[target] -= of_one * (1.0 - of_target * of_target);
                }
                None => {
                    gradients(logits, largest, weight / all, even);
                    logits[target] -= of_one;
                }
            }
        }
        (largest + all.ln() - expected * scale) * weight
    }
}

/// The target of a token, and the factor of its loss.
#[derive(Clone, Copy)]
struct Row {
    target: usize,
    weight: f32,
}

fn scaled(mut all: Vec<f32>, factor: f32) -> Vec<f32> {
    if factor != 1.0 {
        let tasks = all.par_chunks_mut(TASK);
        tasks.for_each(|task| task.iter_mut().for_each(|number| *number *= factor));
    }
    all
}

vectorized! {
    fn capped(logits: &mut [f32], cap: f32) -> () {
        for logit in logits {
            *logit = tanh(*logit / cap);
        }
    }
}

vectorized! {
    fn sum_of_blocks(logits: &[f32]) -> f32 {
        let mut all = 0.0;
        for block in logits.chunks(BLOCK) {
            all += sum(block);
        }
        all
    }
}

vectorized! {
    /// Returns the largest logit, and the sum of the exponentials of the differences to it.
    fn exponentials(logits: &[f32], scale: f32) -> (f32, f32) {
        let largest = max(logits) * scale;
        let mut all = 0.0;
        for block in logits.chunks(BLOCK) {
            let mut lanes = [0.0; LANES];
            let (wholes, rest) = block.as_chunks::<LANES>();
            for logits in wholes {
                for lane in 0..LANES {
                    lanes[lane] += exp(logits[lane] * scale - largest);
                }
            }
            for logit in rest {
                lanes[0] += exp(logit * scale - largest);
            }
            all += total(lanes);
        }
        (largest, all)
    }
}

vectorized! {
    /// Replaces logits by the gradients of the loss, without the term of the target.
    fn gradients(logits: &mut [f32], largest: f32, share: f32, even: f32) -> () {
        for logit in logits {
            *logit = exp(*logit - largest) * share - even;
        }
    }
}

vectorized! {
    /// Replaces `tanh(logits / cap)` by the gradients of the loss by the logits, without the term of the target.
    fn capped_gradients(
        logits: &mut [f32],
        cap: f32,
        largest: f32,
        share: f32,
        even: f32,
    ) -> () {
        for logit in logits {
            let slope = 1.0 - *logit * *logit;
            *logit = (exp(*logit * cap - largest) * share - even) * slope;
        }
    }
}
