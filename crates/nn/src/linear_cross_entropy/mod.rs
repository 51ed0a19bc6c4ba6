//! Output head and cross entropy of a large vocabulary.

mod composition;
mod kernel;

use backburn_base::AnyTensor;
use burn::tensor::{Int, Tensor};

use crate::check_shape;
use crate::elements::{dense, have_kernel};
use crate::node::operation;

/// Options of [`linear_cross_entropy`].
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCrossEntropyOptions {
    /// Number of tokens whose logits are in memory at a time, 256 by default.
    pub chunk_size: usize,
    /// Target of tokens that are left out, such as PyTorch's `ignore_index` -100. `None` by default.
    pub ignored: Option<i64>,
    /// Label smoothing: the fraction of each target that is distributed evenly over all classes, 0 by default.
    pub smoothing: f64,
    /// Bound of the absolute value of the logits, as a smooth function: `soft_cap * tanh(logits / soft_cap)`
    /// ([Gemma 2, 2024](https://arxiv.org/abs/2408.00118)). `None` by default.
    pub soft_cap: Option<f64>,
}

impl Default for LinearCrossEntropyOptions {
    fn default() -> Self {
        Self {
            chunk_size: 256,
            ignored: None,
            smoothing: 0.0,
            soft_cap: None,
        }
    }
}

impl LinearCrossEntropyOptions {
    fn check(&self) {
        assert!(
            self.chunk_size > 0,
            "`chunk_size` is 0: it must be at least 1"
        );
        assert!(
            (0.0..=1.0).contains(&self.smoothing),
            "`smoothing` is {}: it must be from 0 to 1",
            self.smoothing
        );
        if let Some(cap) = self.soft_cap {
            assert!(
                cap as f32 > 0.0 && (cap as f32).is_finite(),
                "`soft_cap` is {cap}: it must be a positive number of f32"
            );
        }
    }
}

/// Returns the sum of the cross entropies of `targets` in nats, with the logits `hidden * weight^T`. For the mean, divide by the
/// number of tokens.
///
/// The forward pass computes the gradients, too, as Liger Kernel does ([Hsu et al., 2024](https://arxiv.org/abs/2410.10989)): the
/// logits `l` of a chunk of tokens are replaced by their gradient, `softmax(l) - onehot(target)`, which is immediately added to
/// the gradients of `hidden` and `weight`. For the backward pass it keeps these two (on `flex` in f32), and multiplies them by
/// the gradient of the sum. One that is not needed (of a frozen head, or in inference) is not computed.
///
/// # Shapes
///
/// - hidden: `[tokens, d_model]`
/// - weight: `[classes, d_model]`, as of an `Embedding`. Pass the weight of a `Linear` transposed; its gradient has its layout
/// - targets: `[tokens]`
/// - weights: `[tokens]`, factors of the losses of single tokens. They are constants
/// - output: `[1]`, in f64 if `hidden` is, else in f32
///
/// # Panics
///
/// If the shapes differ from those above, `chunk_size` is 0, `smoothing` is not from 0 to 1, or `soft_cap` is not a positive number of f32; on
/// `flex` also if a target is neither ignored nor a class, except in f64. Otherwise the loss is NaN, and the token adds no gradient.
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    weight: Tensor<2>,
    targets: Tensor<1, Int>,
    weights: Option<Tensor<1>>,
    options: &LinearCrossEntropyOptions,
) -> Tensor<1> {
    let ([tokens, d_model], [classes, _]) = (hidden.dims(), weight.dims());
    let weight_name = "`weight`, `[classes, d_model]`,";
    check_shape(weight_name, weight.dims(), [classes, d_model], "`hidden`");
    check_shape("`targets`", targets.dims(), [tokens], "`hidden`");
    if let Some(weights) = &weights {
        check_shape("`weights`", weights.dims(), [tokens], "`hidden`");
    }
    options.check();
    let problem = Problem {
        targets: targets.inner(),
        weights: weights.map(Tensor::inner),
        options: options.clone(),
    };
    operation(
        [hidden.into(), dense(weight).into()],
        |inputs, needed| match have_kernel(&inputs) && inputs[1].shape().num_elements() > 0 {
            true => problem.kernel(inputs, needed),
            false => problem.operations(inputs, needed),
        },
        |[hidden, weight]: [AnyTensor; 2]| {
            problem.composed(hidden.of_dims(), weight.of_dims()).into()
        },
    )
    .of_dims()
}

/// Everything but the tensors that have gradients.
struct Problem {
    targets: Tensor<1, Int>,
    weights: Option<Tensor<1>>,
    options: LinearCrossEntropyOptions,
}
