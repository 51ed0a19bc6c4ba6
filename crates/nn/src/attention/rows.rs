//! Rows of scores.

use burn::backend::Flex;
use burn::backend::tensor::BoolTensor;
use rayon::prelude::*;

use super::Problem;
use crate::elements::TASK;
use crate::simd::{dot, exp, max, sum, vectorized};

/// The bytes of a mask, its first element and its strides.
#[derive(Clone)]
pub(super) struct Mask(BoolTensor<Flex>, usize, [usize; 4]);

impl Mask {
    /// Returns `None` if the kernel can't read the mask.
    pub(super) fn new(problem: &Problem) -> Option<Option<Self>> {
        let sizes = &problem.sizes;
        let Some(mask) = problem.mask.clone() else {
            return Some(None);
        };
        let mask = mask.expand([sizes.batch, sizes.heads, sizes.queries, sizes.keys]);
        let mask = mask.try_into_primitive::<Flex>().ok()?;
        let layout = mask.layout();
        let mut strides = [0; 4];
        for (to, from) in strides.iter_mut().zip(layout.strides()) {
            *to = usize::try_from(*from).ok()?;
        }
        let start = layout.start_offset();
        (mask.dtype().size() == 1).then(|| Some(Self(mask, start, strides)))
    }

    /// Hides the scores of a row, which has the keys from `first` on.
    pub(super) fn hide(&self, [batch, head, query]: [usize; 3], first: usize, scores: &mut [f32]) {
        let Self(bytes, start, [of_batch, of_head, of_query, of_key]) = self;
        let start = start + batch * of_batch + head * of_head + query * of_query + first * of_key;
        if !scores.is_empty() {
            hide(&bytes.bytes()[start..], *of_key, scores);
        }
    }
}

/// Numbers of a row from which its softmax is recomputed, with the rounding of the forward pass. Their logarithms in a single number
/// would round the scores.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The largest score.
    largest: f32,
    /// One divided by the sum of the exponentials.
    share: f32,
}

impl Row {
    /// Numbers of a row without any key, whose softmax is zero.
    pub(super) const EMPTY: Self = Self {
        largest: f32::INFINITY,
        share: 0.0,
    };
}

/// Sums over the heads of each group, in their order.
pub(super) fn sum_of_groups(all: Vec<f32>, group: usize, of_head: usize) -> Vec<f32> {
    if group == 1 {
        return all;
    }
    let mut sums = vec![0.0; all.len() / group];
    let heads = sums
        .par_chunks_mut(of_head)
        .zip(all.par_chunks(group * of_head));
    heads.for_each(|(sums, terms)| {
        let tasks = sums.par_chunks_mut(TASK).enumerate();
        tasks.for_each(|(task, sums)| {
            for terms in terms.chunks(of_head) {
                add(sums, &terms[task * TASK..]);
            }
        });
    });
    sums
}

vectorized! {
    fn add(sums: &mut [f32], terms: &[f32]) -> () {
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += term;
        }
    }
}

vectorized! {
    fn hide(mask: &[u8], stride: usize, scores: &mut [f32]) -> () {
        if stride == 1 {
            for (score, is_hidden) in scores.iter_mut().zip(mask) {
                *score = if *is_hidden != 0 { f32::NEG_INFINITY } else { *score };
            }
            return;
        }
        for (key, score) in scores.iter_mut().enumerate() {
            if mask[key * stride] != 0 {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

vectorized! {
    /// Replaces scores by their softmax.
    pub(super) fn softmax(scores: &mut [f32]) -> Row {
        let largest = max(scores);
        if largest == f32::NEG_INFINITY {
            // There is no key, or NaN.
            for score in scores.iter_mut() {
                *score = if *score == f32::NEG_INFINITY { 0.0 } else { f32::NAN };
            }
            return Row::EMPTY;
        }
        for score in scores.iter_mut() {
            *score = exp(*score - largest);
        }
        let share = 1.0 / sum(scores);
        for score in scores.iter_mut() {
            *score *= share;
        }
        Row { largest, share }
    }
}

vectorized! {
    /// Replaces the scores of a row by their softmax, and the gradients of the softmax by those of the scores.
    pub(super) fn gradients_of_scores(
        scores: &mut [f32],
        gradients: &mut [f32],
        row: Row,
        output: &[f32],
        of_output: &[f32],
        scale: f32,
    ) -> () {
        let of_row = dot(output, of_output);
        for (score, gradient) in scores.iter_mut().zip(gradients) {
            let share = exp(*score - row.largest) * row.share;
            *score = share;
            *gradient = share * (*gradient - of_row) * scale;
        }
    }
}
