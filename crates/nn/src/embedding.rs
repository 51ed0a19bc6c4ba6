//! Embedding.

use backburn_base::AnyTensor;
use burn::nn::Embedding;
use burn::tensor::module::embedding as rows;
use burn::tensor::{IndexingUpdateOp, Int, Tensor};

use crate::node::{Computed, operation};

/// Returns the rows of the weight of `layer` at `tokens`, as [`Embedding::forward`] does. The output and the gradient are the same to
/// the bit.
///
/// For the backward pass it keeps `tokens`. The gradient is the gradient of the output, added up for each token. On `flex` it is one
/// buffer, where Burn has two at once, because `Tensor::zeros` of Burn 0.22 makes a copy of its buffer.
///
/// # Shapes
///
/// - tokens: `[batch, length]`
/// - output: `[batch, length, d_model]`
///
/// # Panics
///
/// If a token is not a row of the weight.
pub fn embedding(layer: &Embedding, tokens: Tensor<2, Int>) -> Tensor<3> {
    let tokens = tokens.inner();
    let weight = layer.weight.val();
    let shape = weight.dims();
    let run = |[weight]: [AnyTensor; 1], _: [bool; 1]| {
        let tokens = tokens.clone();
        let output = rows(weight.of_rank(), tokens.clone());
        Computed::new(output.into(), move |gradient| {
            // `reshape` would take a size of 0 for the size of the dimension before.
            let gradient = gradient.of_rank::<3>().flatten::<2>(0, 1);
            let zeros = Tensor::<2>::full(shape, 0.0, (&gradient.device(), gradient.dtype()));
            let tokens = tokens.flatten::<1>(0, 1);
            let sum = zeros.select_assign(0, tokens, gradient, IndexingUpdateOp::Add);
            [AnyTensor::from(sum)]
        })
    };
    let compose = |[weight]: [AnyTensor; 1]| {
        let tokens = Tensor::from_inner(tokens.clone());
        rows(weight.of_rank(), tokens).into()
    };
    operation([weight.into()], run, compose).of_rank()
}
