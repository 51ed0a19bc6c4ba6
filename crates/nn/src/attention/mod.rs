//! Attention.

mod composition;
#[cfg(feature = "flex")]
mod kernel;
#[cfg(feature = "flex")]
mod rows;

use backburn_base::AnyTensor;
use burn::tensor::{Bool, Tensor};

use crate::check_shape;
use crate::node::{Computed, operation, recomputed};

/// Options of [`attention`]. The last query is at the place of the last key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// A token attends to itself and to earlier ones only.
    pub is_causal: bool,
    /// A token attends to itself and to the `window - 1` tokens before it ([Beltagy et al., 2020](https://arxiv.org/abs/2004.05150)), and to
    /// all later ones unless `is_causal`.
    pub window: Option<usize>,
    /// Factor of the scores, `1 / sqrt(head_dim)` by default.
    pub scale: Option<f64>,
}

/// Computes `softmax(scale * query * key^T) * value`, as Burn's [`attention`](burn::tensor::module::attention) does, for groups of heads
/// that share their keys and values ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)), which are not copied.
///
/// A position is hidden where `mask` is `true`, or by `options`. A token that attends to none has an output of zeros.
///
/// For the backward pass it keeps its inputs, and recomputes the softmax `p` ([Dao, 2023](https://arxiv.org/abs/2307.08691)). With `do`
/// for the gradient of the output, `dp = do * value^T` and `ds = p * (dp - sum(dp * p)) * scale`, the gradients of query, key and value
/// are `ds * key`, `ds^T * query` and `p^T * do`. On `flex` the scores of up to 64 queries of a head are in memory at a time for each
/// thread, elsewhere those of all. Keys that are hidden from all of them by `is_causal` or `window` are not read.
///
/// # Shapes
///
/// - query: `[batch, heads, queries, head_dim]`
/// - key: `[batch, groups, keys, head_dim]`, `groups` divides `heads`
/// - value: `[batch, groups, keys, value_dim]`
/// - mask: `[batch or 1, heads or 1, queries, keys]`
/// - output: `[batch, heads, queries, value_dim]`
///
/// # Panics
///
/// If the shapes differ from those above, or `head_dim` or `window` is 0.
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
    options: AttentionOptions,
) -> Tensor<4> {
    let [batch, heads, queries, head_dim] = query.dims();
    let [_, groups, keys, value_dim] = value.dims();
    let key_shape = [batch, groups, keys, head_dim];
    check_shape("`key`", key.dims(), key_shape, "`query` and `value`");
    let value_shape = [batch, groups, keys, value_dim];
    check_shape("`value`", value.dims(), value_shape, "`query`");
    assert!(
        groups > 0 && heads % groups == 0,
        "`query` has {heads} heads and `key` has {groups}: the second number must divide the first"
    );
    if let Some(mask) = mask.as_ref().map(Tensor::dims) {
        let once = |size, all| if size == 1 { 1 } else { all };
        let expected = [once(mask[0], batch), once(mask[1], heads), queries, keys];
        check_shape("`mask`", mask, expected, "`query` and `key`");
    }
    assert!(
        head_dim > 0,
        "`head_dim` is 0: `query` and `key` must have at least one column"
    );
    assert!(
        options.window != Some(0),
        "`window` is 0: it must be at least 1, the token itself"
    );
    let problem = Problem {
        batch,
        heads,
        groups,
        queries,
        keys,
        head_dim,
        value_dim,
        scale: options
            .scale
            .unwrap_or_else(|| 1.0 / (head_dim as f64).sqrt()),
        mask: mask.map(Tensor::inner),
        options,
    };
    let inputs = [query, key, value].map(AnyTensor::from);
    let run = |inputs, needed| problem.run(inputs, needed);
    operation(inputs, run, |inputs| problem.composed(inputs)).of_dims()
}

/// Everything but the tensors that have gradients.
#[derive(Clone, Debug)]
struct Problem {
    batch: usize,
    heads: usize,
    /// Heads of keys and values.
    groups: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    value_dim: usize,
    scale: f64,
    mask: Option<Tensor<4, Bool>>,
    options: AttentionOptions,
}

impl Problem {
    fn run(&self, inputs: [AnyTensor; 3], needed: [bool; 3]) -> Computed {
        if inputs.iter().any(|it| it.shape().num_elements() == 0) {
            return self.zeros(inputs);
        }
        #[cfg(feature = "flex")]
        if let Some(computed) = self.kernel(&inputs) {
            return computed;
        }
        let problem = self.clone();
        recomputed(inputs, needed, move |inputs| problem.composed(inputs))
    }

    fn output_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_dim]
    }

    /// Returns the output if there are no queries, or nothing to attend to.
    fn zeros(&self, inputs: [AnyTensor; 3]) -> Computed {
        let options = (&inputs[0].device(), inputs[0].dtype());
        let output = Tensor::<4>::zeros(self.output_shape(), options);
        Computed::new(output.into(), |_| {
            inputs.map(|it| AnyTensor(it.0.zeros_like()))
        })
    }
}
