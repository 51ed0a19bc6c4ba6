//! Attention by operations on whole tensors.
//!
//! The queries of a group of heads are one matrix, so that keys and values are not copied.

use backburn_base::{AnyTensor, in_type};
use burn::tensor::{Bool, DType, Tensor};

use super::Problem;
use crate::elements::wide;
use crate::node::Computed;

impl Problem {
    pub(super) fn forward(&self, inputs: &[Tensor<4>; 3]) -> Tensor<4> {
        let dtype = inputs[0].dtype();
        let [query, key, value] = inputs.clone().map(|it| in_type(it, wide(dtype)));
        let output = self.joined(self.shares(query, key).matmul(value));
        in_type(output, dtype)
    }

    pub(super) fn operations(&self, inputs: [AnyTensor; 3]) -> Computed {
        let inputs = inputs.map(AnyTensor::of_rank::<4>);
        let problem = self.clone();
        Computed::new(self.forward(&inputs).into(), move |gradient| {
            let gradients = problem.gradients(inputs, gradient.of_rank());
            gradients.map(AnyTensor::from)
        })
    }

    fn gradients(self, inputs: [Tensor<4>; 3], gradient: Tensor<4>) -> [Tensor<4>; 3] {
        let dtype = wide(inputs[0].dtype());
        let [query, key, value] = inputs.map(|it| in_type(it, dtype));
        let gradient = self.grouped(in_type(gradient, dtype));
        let shares = self.shares(query.clone(), key.clone());
        let of_value = shares.clone().transpose().matmul(gradient.clone());
        let of_shares = gradient.matmul(value.transpose());
        let centered = |x: Tensor<4>| x.clone() - (shares.clone() * x).sum_dim(3);
        // Twice, because the sum is rounded: this is all that is left of the difference if a share is near 1.
        let of_scores = shares.clone() * centered(centered(of_shares)) * self.scale;
        // A hidden key has no gradient, also in a row with NaN.
        let of_scores = self.grouped(self.filled(self.joined(of_scores), 0.0));
        let of_query = self.joined(of_scores.clone().matmul(key));
        let of_key = of_scores.transpose().matmul(self.grouped(query));
        [of_query, of_key, of_value]
    }

    /// Computes the softmax of the scores, zero where they are hidden. Shape: that of [`grouped`](Self::grouped).
    fn shares(&self, query: Tensor<4>, key: Tensor<4>) -> Tensor<4> {
        let scores = self.grouped(query).matmul(key.transpose()) * self.scale;
        let scores = self.filled(self.joined(scores), f32::NEG_INFINITY);
        // Finite, so that a row without any key is zero.
        let lowest = match scores.dtype() {
            DType::F64 => f64::MIN,
            _ => f64::from(f32::MIN),
        };
        let largest = scores.clone().detach().max_dim(3).clamp_min(lowest);
        let exponentials = (scores - largest).exp();
        // The sum over some key is 1 or more.
        let sum = exponentials.clone().sum_dim(3).clamp_min(0.5);
        self.grouped(exponentials / sum)
    }

    /// Replaces positions that are hidden. Shape: `[batch, heads, queries, keys]`.
    fn filled(&self, scores: Tensor<4>, value: f32) -> Tensor<4> {
        let (device, sizes) = (scores.device(), [self.queries, self.keys]);
        let mut hidden = Vec::from_iter(self.mask.clone());
        // `tril_mask` is `true` above the diagonal. The last query is at the place of the last key.
        let diagonal = self.keys as i64 - self.queries as i64;
        if self.options.is_causal {
            hidden.push(Tensor::<2, Bool>::tril_mask(sizes, diagonal, &device).unsqueeze());
        }
        if let Some(window) = self.options.window.filter(|it| *it < self.keys) {
            let before = diagonal - window as i64;
            let before = Tensor::<2, Bool>::tril_mask(sizes, before, &device);
            hidden.push(before.bool_not().unsqueeze());
        }
        match hidden.into_iter().reduce(Tensor::bool_or) {
            Some(hidden) => {
                let hidden = hidden.expand(scores.dims());
                scores.mask_fill(hidden, value)
            }
            None => scores,
        }
    }

    /// Converts `[batch, heads, queries, n]` to `[batch, groups, heads / groups * queries, n]`.
    fn grouped(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, _, queries, columns] = x.dims();
        let rows = self.heads / self.groups * queries;
        x.reshape([batch, self.groups, rows, columns])
    }

    /// Reverts [`grouped`](Self::grouped).
    fn joined(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, .., columns] = x.dims();
        x.reshape([batch, self.heads, self.queries, columns])
    }
}
