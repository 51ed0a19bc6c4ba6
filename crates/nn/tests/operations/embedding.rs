//! Embedding.

use backburn_base::AnyTensor;
use backburn_nn::embedding;
use burn::module::{Param, ParamId};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use crate::case::{Case, assert_case, assert_same_places};

fn layer(weight: &AnyTensor) -> Embedding {
    let mut layer = EmbeddingConfig::new(1, 1).init(&Device::flex());
    layer.weight = Param::initialized(ParamId::new(), weight.clone().of_dims());
    layer
}

/// Tokens that occur once, several times and never.
fn tokens([batch, length]: [usize; 2], classes: i64, device: &Device) -> Tensor<2, Int> {
    let tokens = Tensor::<1, Int>::arange(0..(batch * length) as i64, device);
    let tokens = (tokens.clone() * tokens).remainder_scalar(classes);
    tokens.reshape([batch, length])
}

fn with_embedding(shape: [usize; 2], classes: usize, check: impl Fn(&Case<'_, 3>)) {
    let tokens = |device: &Device| tokens(shape, classes as i64, device);
    check(&Case {
        name: "embedding",
        inputs: vec![vec![classes, 8]],
        operation: &|inputs| embedding(&layer(&inputs[0]), tokens(&inputs[0].device())),
        stock: &|inputs| layer(&inputs[0]).forward(tokens(&inputs[0].device())),
        exact: None,
    });
}

#[test]
fn embedding_equals_composition() {
    for (shape, classes) in [([1, 1], 1), ([2, 3], 5), ([3, 40], 7), ([1, 700], 64)] {
        with_embedding(shape, classes, assert_case);
    }
}

#[test]
fn embedding_spreads_nan_and_infinity_as_composition() {
    with_embedding([2, 3], 5, assert_same_places);
}

#[test]
fn embedding_equals_burn_to_the_bit() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let weight = Tensor::<2>::ones([7, 8], &device).cast(dtype);
        let layer = layer(&weight.clone().detach().require_grad().into());
        let gradient = |output: Tensor<3>| {
            let steps = Tensor::<1, Int>::arange(0..3 * 40 * 8, &device).float();
            let weights = (steps * 0.7).sin().reshape([3, 40, 8]).cast(dtype);
            let gradients = (output * weights).sum().backward();
            let gradient = layer.weight.val().grad(&gradients);
            gradient.expect("the weight is used").into_data()
        };
        let found = gradient(embedding(&layer, tokens([3, 40], 7, &device)));
        let expected = gradient(layer.forward(tokens([3, 40], 7, &device)));
        found.assert_eq(&expected, true);
    }
}

/// Returns the gradient of a leaf of `[classes, width]`, if a function of it is the embedding and the head.
fn tied_gradient(
    [classes, width]: [usize; 2],
    dtype: FloatDType,
    weight: impl Fn(Tensor<2>) -> Tensor<2>,
    embedding: impl Fn(&Embedding, Tensor<2, Int>) -> Tensor<3>,
) -> TensorData {
    let device = Device::flex().autodiff();
    let numbers = |count: usize, step: f32| {
        let numbers = Tensor::<1, Int>::arange(0..count as i64, &device).float();
        (numbers * step).sin().cast(dtype)
    };
    let leaf = numbers(classes * width, 0.3).reshape([classes, width]);
    let leaf = leaf.require_grad();
    let weight = weight(leaf.clone());
    let output = embedding(
        &layer(&weight.clone().into()),
        tokens([3, 40], classes as i64, &device),
    );
    let factors = numbers(3 * 40 * width, 0.7).reshape([3, 40, width]);
    let hidden = (output * factors).flatten::<2>(0, 1);
    let loss = hidden.matmul(weight.transpose()).tanh().sum();
    let gradient = leaf.grad(&loss.backward());
    gradient.expect("the leaf is used").into_data()
}

#[test]
fn embedding_that_is_head_equals_burn_to_the_bit() {
    let dtypes = [
        FloatDType::F64,
        FloatDType::F32,
        FloatDType::BF16,
        FloatDType::F16,
    ];
    // The second weight is no leaf, so that the gradient is added to that of the head in place.
    let weights: [fn(Tensor<2>) -> Tensor<2>; 2] = [|leaf| leaf, |leaf| leaf * 3];
    for shape in [[1, 1], [1, 8], [7, 8], [121, 1], [200, 8]] {
        for (dtype, weight) in dtypes
            .iter()
            .flat_map(|it| weights.map(|weight| (*it, weight)))
        {
            let found = tied_gradient(shape, dtype, weight, embedding);
            let expected = tied_gradient(shape, dtype, weight, |layer, it| layer.forward(it));
            found.assert_eq(&expected, true);
        }
    }
}

#[test]
fn embedding_of_no_tokens_has_gradient_of_zeros() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::BF16] {
        let weight = Tensor::<2>::ones([7, 8], &device).cast(dtype);
        let layer = layer(&weight.detach().require_grad().into());
        for shape in [[2, 0], [0, 5]] {
            let output = embedding(&layer, Tensor::zeros(shape, &device));
            assert_eq!(output.dims(), [shape[0], shape[1], 8]);
            let gradient = layer.weight.val().grad(&output.sum().backward());
            let gradient = gradient.expect("the weight is used").into_data();
            let zeros = Tensor::<2>::zeros([7, 8], &Device::flex()).cast(dtype);
            gradient.assert_eq(&zeros.into_data(), true);
        }
    }
}
