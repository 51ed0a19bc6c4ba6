//! Embedding.

use std::collections::HashMap;
use std::slice;

use backburn_base::AnyTensor;
use burn::nn::Embedding;
use burn::tensor::module::embedding as burn_embedding;
use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use crate::elements::have_kernel;
use crate::node::{Computed, operation};

/// Returns the rows of the weight of `layer` at `tokens`, as [`Embedding::forward`] does. The output and the gradient are the same to
/// the bit.
///
/// For the backward pass it keeps `tokens`. The gradient is the gradient of the output, added up for each token. On `flex` it is one
/// buffer, where Burn has two at once, because `Tensor::zeros` of Burn 0.22 makes a copy of its buffer. If the same tensor is also the head
/// of [`linear_cross_entropy`](crate::linear_cross_entropy) and not a leaf of the graph (in fused training no parameter is a leaf), it is
/// added to the gradient of the head in place, with a buffer for the rows of the tokens, if there are fewer tokens than
/// classes.
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
        // For many tokens and few classes a matrix of its own takes less.
        let has_few_tokens = tokens.dims().iter().product::<usize>() < shape[0];
        let adds = has_few_tokens && shape[1] > 0 && have_kernel(slice::from_ref(&weight));
        let output = burn_embedding(weight.of_dims(), tokens.clone()).into();
        // `reshape` would take a size of 0 for the size of the dimension before.
        let tokens = tokens.clone().flatten::<1>(0, 1);
        let backward = move |gradient: AnyTensor, [sum]: [Option<AnyTensor>; 1]| {
            let gradient = gradient.of_dims::<3>().flatten::<2>(0, 1);
            let options = (gradient.device(), gradient.dtype());
            let zeros = |shape| Tensor::full(shape, 0.0, (&options.0, options.1));
            [match sum {
                Some(sum) => {
                    // The gradients of a token are added up first, so that the bits are those of the sum of two matrices.
                    let gradients = add(zeros(gradient.dims()), first_uses(&tokens), gradient);
                    add(sum.of_dims(), tokens, gradients).into()
                }
                None => AnyTensor::from(add(zeros(shape), tokens, gradient)),
            }]
        };
        let mut computed = Computed::keeping([false], output, backward);
        computed.adds_to = adds.then_some(shape.into());
        computed
    };
    // Plain tokens fit any strategy of gradient checkpointing.
    let compose =
        |[weight]: [AnyTensor; 1]| burn_embedding(weight.of_dims(), tokens.clone()).into();
    operation([weight.into()], run, compose).of_dims()
}

/// Adds `values`, `[tokens, d_model]`, to the rows of `sum` at `tokens`.
fn add(sum: Tensor<2>, tokens: Tensor<1, Int>, values: Tensor<2>) -> Tensor<2> {
    sum.select_assign(0, tokens, values, IndexingUpdateOp::Add)
}

/// Returns for each token the position of the first that is equal.
fn first_uses(tokens: &Tensor<1, Int>) -> Tensor<1, Int> {
    let mut first = HashMap::new();
    let data = tokens.clone().into_data();
    let positions = (0..).zip(data.iter::<i64>());
    let positions: Vec<i64> = positions
        .map(|(position, token)| *first.entry(token).or_insert(position))
        .collect();
    Tensor::from_data(positions.as_slice(), (&tokens.device(), DType::I64))
}
