//! Norms.

use backburn_base::AnyTensor;
use backburn_nn::{layer_norm, rms_norm};
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm};
use burn::tensor::{Device, Int, Tensor};

use crate::case::{Case, assert_case, assert_same_places, param};

/// An epsilon so large that the norm of a constant row doesn't multiply rounding errors.
pub const EPSILON: f64 = 0.1;

pub fn rms(gamma: &AnyTensor) -> RmsNorm {
    RmsNorm {
        gamma: param(gamma),
        epsilon: EPSILON,
    }
}

pub fn layer(gamma: &AnyTensor, beta: Option<&AnyTensor>) -> LayerNorm {
    let config = LayerNormConfig::new(1).with_epsilon(EPSILON);
    let mut norm = config.with_bias(beta.is_some()).init(&Device::flex());
    norm.gamma = param(gamma);
    norm.beta = beta.map(param);
    norm
}

/// Checks the norm of inputs that are shifted by `offset`.
fn with_rms_norm<const D: usize>(shape: [usize; D], offset: f64, check: impl Fn(&Case<'_, D>)) {
    let x = |inputs: &[AnyTensor]| inputs[0].clone().of_dims::<D>() + offset;
    check(&Case {
        name: "rms_norm",
        inputs: vec![shape.to_vec(), vec![shape[D - 1]]],
        operation: &|inputs| rms_norm(&rms(&inputs[1]), x(inputs)),
        stock: &|inputs| rms(&inputs[1]).forward(x(inputs)),
        // Burn's norm is in f32 in a model in f64.
        exact: Some(&|inputs| {
            let x = x(inputs);
            let squares = x.clone().square().mean_dim(D - 1);
            let gamma: Tensor<1> = inputs[1].clone().of_dims();
            x / (squares + EPSILON).sqrt() * gamma.unsqueeze()
        }),
    });
}

fn with_layer_norm<const D: usize>(
    shape: [usize; D],
    has_beta: bool,
    offset: f64,
    check: impl Fn(&Case<'_, D>),
) {
    let x = |inputs: &[AnyTensor]| inputs[0].clone().of_dims::<D>() + offset;
    let mut inputs = vec![shape.to_vec(), vec![shape[D - 1]]];
    if has_beta {
        inputs.push(vec![shape[D - 1]]);
    }
    check(&Case {
        name: "layer_norm",
        inputs,
        operation: &|inputs| layer_norm(&layer(&inputs[1], inputs.get(2)), EPSILON, x(inputs)),
        stock: &|inputs| layer(&inputs[1], inputs.get(2)).forward(x(inputs)),
        exact: None,
    });
}

#[test]
fn rms_norm_equals_burn() {
    let shapes = [[3, 5, 64], [1, 300, 96], [2, 1, 3], [1, 7, 37], [4, 3, 1]];
    for shape in shapes.into_iter().chain([[2, 0, 8], [0, 3, 8]]) {
        with_rms_norm(shape, 0.0, assert_case);
    }
    with_rms_norm([2, 5, 64], 30.0, assert_case);
    with_rms_norm([37], 0.0, assert_case);
    with_rms_norm([2, 3, 2, 17], 0.0, assert_case);
    // Rows that are longer than a task.
    with_rms_norm([2, 20_000], 0.0, assert_case);
}

#[test]
fn layer_norm_equals_burn() {
    for has_beta in [true, false] {
        let shapes = [[3, 5, 64], [1, 300, 96], [1, 7, 37], [4, 3, 1]];
        for shape in shapes.into_iter().chain([[2, 0, 8], [0, 3, 8]]) {
            with_layer_norm(shape, has_beta, 0.0, assert_case);
        }
        with_layer_norm([2, 5, 64], has_beta, 30.0, assert_case);
        with_layer_norm([37], has_beta, 0.0, assert_case);
        with_layer_norm([2, 3, 2, 17], has_beta, 0.0, assert_case);
    }
    with_layer_norm([2, 20_000], true, 0.0, assert_case);
}

#[test]
fn norms_spread_nan_and_infinity_as_burn() {
    with_rms_norm([2, 3, 17], 0.0, assert_same_places);
    with_layer_norm([2, 3, 17], true, 0.0, assert_same_places);
}

/// The squares of the huge row overflow, and the variance of the tiny one is close to the smallest number of f32.
#[test]
fn norms_of_huge_and_tiny_rows_have_finite_gradients() {
    let device = Device::flex().autodiff();
    for (size, epsilon, factor) in [(1e30, 1e-5, 1e20), (1e-22, 1e-39, 1.0)] {
        let gamma = Tensor::<1>::ones([33], &device).into();
        let layer = layer(&gamma, None);
        let rms = RmsNorm {
            epsilon,
            ..rms(&gamma)
        };
        let x = Tensor::<1, Int>::arange(1..34, &device).float().sin();
        let check = |name: &str, norm: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let x = (x.clone().unsqueeze::<2>() * size).require_grad();
            let dy = Tensor::from_inner(x.clone().inner().sign()) * factor;
            let y = norm(x.clone()) * dy;
            let dx = x.grad(&y.sum().backward()).unwrap();
            assert!(
                dx.clone().is_finite().all().into_scalar::<bool>(),
                "{name} of {size}: {dx}"
            );
        };
        check("rms_norm", &|x| rms_norm(&rms, x));
        check("layer_norm", &|x| layer_norm(&layer, epsilon, x));
    }
}
