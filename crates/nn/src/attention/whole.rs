//! Attention by operations on whole tensors.
//!
//! The queries of a group of heads are one matrix, so that keys and values are not copied.

use backburn_base::{AnyTensor, in_type};
use burn::tensor::{Bool, Tensor};

use super::Problem;
use crate::node::Computed;
use crate::whole::wide;

impl Problem {
    /// Computes the output; and of each row the largest score, and the sum of the exponentials.
    pub(super) fn forward(&self, inputs: &[Tensor<4>; 3]) -> (Tensor<4>, [Tensor<4>; 2]) {
        let dtype = inputs[0].dtype();
        let [query, key, value] = inputs.clone().map(|it| in_type(it, wide(dtype)));
        let scores = self.scores(query, key);
        // Finite, so that a row without any key is zero.
        let lowest = f64::from(f32::MIN);
        let largest = scores.clone().max_dim(3).clamp_min(lowest);
        let exponentials = (scores - largest.clone()).exp();
        let sum = exponentials.clone().sum_dim(3);
        let sum = sum.clamp_min(f64::from(f32::MIN_POSITIVE));
        let share = exponentials / sum.clone();
        let output = self.joined(self.grouped(share).matmul(value));
        (in_type(output, dtype), [largest, sum])
    }

    pub(super) fn operations(&self, inputs: [AnyTensor; 3]) -> Computed<3> {
        let inputs = inputs.map(AnyTensor::of_rank::<4>);
        let (output, numbers) = self.forward(&inputs);
        let problem = self.clone();
        Computed::new(output.clone().into(), move |gradient| {
            let gradient = gradient.of_rank();
            let gradients = problem.gradients(inputs, output, numbers, gradient);
            gradients.map(|gradient| Some(gradient.into()))
        })
    }

    fn gradients(
        self,
        inputs: [Tensor<4>; 3],
        output: Tensor<4>,
        [largest, sum]: [Tensor<4>; 2],
        gradient: Tensor<4>,
    ) -> [Tensor<4>; 3] {
        let dtype = inputs[0].dtype();
        let cast = |it| in_type(it, wide(dtype));
        let [query, key, value] = inputs.map(cast);
        let [output, gradient] = [output, gradient].map(cast);
        let scores = self.scores(query.clone(), key.clone());
        let share = self.grouped((scores - largest).exp() / sum);
        let of_row = self.grouped((gradient.clone() * output).sum_dim(3));
        let gradient = self.grouped(gradient);
        let of_value = share.clone().transpose().matmul(gradient.clone());
        let of_share = gradient.matmul(value.transpose());
        let of_scores = share * (of_share - of_row) * self.scale();
        let of_query = self.joined(of_scores.clone().matmul(key));
        let of_key = of_scores.transpose().matmul(self.grouped(query));
        [of_query, of_key, of_value].map(|it| in_type(it, dtype))
    }

    /// Computes the scores, negative infinity where they are hidden. Shape: `[batch, heads, queries, keys]`.
    fn scores(&self, query: Tensor<4>, key: Tensor<4>) -> Tensor<4> {
        let device = query.device();
        let scores = self.grouped(query).matmul(key.transpose()) * self.scale();
        let scores = self.joined(scores);
        let sizes = [self.sizes.queries, self.sizes.keys];
        let mut hidden = self.mask.clone();
        let mut hide = |more: Tensor<2, Bool>| {
            let more = more.unsqueeze();
            hidden = Some(match hidden.take() {
                Some(hidden) => hidden.bool_or(more),
                None => more,
            });
        };
        // `tril_mask` is `true` above the diagonal. The last query is at the place of the last key.
        let diagonal = self.sizes.keys as i64 - self.sizes.queries as i64;
        if self.options.is_causal {
            hide(Tensor::tril_mask(sizes, diagonal, &device));
        }
        if let Some(window) = self.options.window.filter(|it| *it < self.sizes.keys) {
            let before = diagonal - window as i64;
            hide(Tensor::<2, Bool>::tril_mask(sizes, before, &device).bool_not());
        }
        match hidden {
            Some(hidden) => {
                let hidden = hidden.expand(scores.dims());
                scores.mask_fill(hidden, f32::NEG_INFINITY)
            }
            None => scores,
        }
    }

    /// Converts `[batch, heads, queries, n]` to `[batch, groups, heads / groups * queries, n]`.
    fn grouped(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads, queries, columns] = x.dims();
        let groups = self.sizes.groups;
        x.reshape([batch, groups, heads / groups * queries, columns])
    }

    /// Reverts [`grouped`](Self::grouped).
    fn joined(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, .., columns] = x.dims();
        x.reshape([batch, self.sizes.heads, self.sizes.queries, columns])
    }
}
