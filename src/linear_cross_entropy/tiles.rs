//! The loss over tiles of the vocabulary, each with all tokens.

use burn::tensor::{Int, Tensor};

use super::{Head, LinearCrossEntropyLoss, capped, outside, precision, smoothed};
use crate::gradient_checkpointing;

impl LinearCrossEntropyLoss {
    /// The logarithm of the probability of each target among so many `classes`. Shapes: `[tokens, d_model]`, `[tokens]`,
    /// `[tokens]`.
    ///
    /// A tile leaves two numbers a token, and in the backward pass the gradient of its part of the head.
    pub(super) fn over_tiles<H: Head>(
        &self,
        head: &H,
        hidden: Tensor<2>,
        targets: Tensor<1, Int>,
        classes: usize,
    ) -> Tensor<1> {
        let [tokens, _] = hidden.dims();
        let outside = outside(&targets, classes);
        let (smoothing, soft_cap) = (self.0.smoothing, self.0.soft_cap);
        let dtype = hidden.dtype();
        // The gradients that tiles have for it are summed in this type.
        let hidden = hidden.cast(precision(dtype));
        let tiles = (0..classes).step_by(self.0.tile_size).map(|start| {
            let end = classes.min(start + self.0.tile_size);
            let input = (hidden.clone(), targets.clone());
            gradient_checkpointing(head, input, move |head: &H, (hidden, targets)| {
                let logits = capped(head.logits_of(hidden.cast(dtype), start..end), soft_cap);
                let of_target = of_target(logits.clone(), targets, start);
                let of_all = || logits.clone().sum_dim(1);
                let mixed = smoothed(of_target, of_all, smoothing, classes);
                (log_sum_exp(logits), mixed)
            })
        });
        let (normalizers, mixed): (Vec<_>, Vec<_>) = tiles.unzip();
        let normalizer = log_sum_exp(Tensor::cat(normalizers, 1));
        let log_likelihoods = Tensor::cat(mixed, 1).sum_dim(1) - normalizer;
        let log_likelihoods = log_likelihoods.reshape([tokens]);
        log_likelihoods.mask_fill(outside, f32::NAN)
    }
}

/// The logit of each target that is among the classes from `start` on, zero for the others. Shapes: `[tokens, tile]`, `[tokens]`,
/// `[tokens, 1]`.
fn of_target(logits: Tensor<2>, targets: Tensor<1, Int>, start: usize) -> Tensor<2> {
    let [_, size] = logits.dims();
    let index: Tensor<2, Int> = targets.sub_scalar(start as i64).unsqueeze_dim(1);
    let before = index.clone().lower_scalar(0);
    let elsewhere = before.bool_or(index.clone().greater_equal_scalar(size as i64));
    let index = index.mask_fill(elsewhere.clone(), 0);
    logits.gather(1, index).mask_fill(elsewhere, 0)
}

/// The logarithm of the sum of exponentials of each row. Shapes: `[rows, columns]`, `[rows, 1]`.
fn log_sum_exp(numbers: Tensor<2>) -> Tensor<2> {
    let most = numbers.clone().detach().max_dim(1);
    // A row of nothing but classes that can't be, at minus infinity, counts for nothing, and its gradients are zeros.
    let nothing = most.clone().lower_scalar(f32::MIN);
    let most = most.mask_fill(nothing.clone(), f32::MIN);
    let sum = (numbers - most.clone()).exp().sum_dim(1);
    sum.mask_fill(nothing, 1).log() + most
}
