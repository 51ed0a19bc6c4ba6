//! Rows of scores.

use burn::backend::Flex;
use burn::backend::tensor::BoolTensor;
use burn::tensor::{Bool, Tensor};
use rayon::prelude::*;

use super::Problem;
use crate::elements::add_all;
use crate::simd::{dot, exp, max, sum, vectorized};

/// The bytes of a mask, its first element, and its strides but the last, which is 1.
pub(super) struct Mask(BoolTensor<Flex>, usize, [usize; 3]);

impl Mask {
    /// Returns `None` if the kernel can't read the mask.
    pub(super) fn new(mask: &Tensor<4, Bool>, problem: &Problem) -> Option<Self> {
        let mask = mask.clone();
        let mask = mask.expand([problem.batch, problem.heads, problem.queries, problem.keys]);
        let mask = mask.try_into_primitive::<Flex>().ok()?;
        let mut strides = [0; 4];
        for (to, from) in strides.iter_mut().zip(mask.layout().strides()) {
            *to = usize::try_from(*from).ok()?;
        }
        let [batch, head, query, key] = strides;
        let start = mask.layout().start_offset();
        (mask.dtype().size() == 1 && key == 1).then(|| Self(mask, start, [batch, head, query]))
    }

    /// Hides the scores of a row, which has the keys from `first` on.
    pub(super) fn hide(&self, [batch, head, query]: [usize; 3], first: usize, scores: &mut [f32]) {
        let Self(mask, start, strides) = self;
        let start = start + batch * strides[0] + head * strides[1] + query * strides[2] + first;
        hide(&mask.bytes()[start..][..scores.len()], scores);
    }
}

/// Sums over the heads of each group, in their order.
pub(super) fn sum_of_groups(all: Vec<f32>, group: usize, length: usize) -> Vec<f32> {
    if group == 1 {
        return all;
    }
    let mut sums = vec![0.0; all.len() / group];
    let groups = all.par_chunks(group * length);
    sums.par_chunks_mut(length)
        .zip(groups)
        .for_each(|(sums, terms)| terms.chunks(length).for_each(|terms| add_all(sums, terms)));
    sums
}

vectorized! {
    fn hide(mask: &[u8], scores: &mut [f32]) -> () {
        for (score, is_hidden) in scores.iter_mut().zip(mask) {
            *score = if *is_hidden != 0 { f32::NEG_INFINITY } else { *score };
        }
    }
}

vectorized! {
    /// Replaces scores by their softmax, which is zero where they are hidden.
    pub(super) fn softmax(scores: &mut [f32]) -> () {
        let largest = max(scores);
        // Finite also if all are hidden.
        let largest = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        for score in scores.iter_mut() {
            *score = exp(*score - largest);
        }
        let share = 1.0 / sum(scores);
        for score in scores.iter_mut() {
            *score = if *score == 0.0 { 0.0 } else { *score * share };
        }
    }
}

vectorized! {
    /// Replaces the gradients of the softmax of a row by those of its scores.
    pub(super) fn gradients_of_scores(shares: &[f32], gradients: &mut [f32], scale: f32) -> () {
        let total = dot(shares, gradients, [0.0; 2]);
        // The rounding of `total`, which is all that is left of the difference if a share is near 1.
        let rest = dot(shares, gradients, [0.0, total]);
        for (gradient, share) in gradients.iter_mut().zip(shares) {
            let difference = *gradient - total - rest;
            // A hidden key has no gradient, also in a row with NaN.
            *gradient = if *share == 0.0 { 0.0 } else { *share * difference * scale };
        }
    }
}
