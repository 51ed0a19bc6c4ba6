//! Gated activations.

use backburn_base::AnyTensor;
use backburn_nn::{geglu, swiglu};
use burn::module::{Param, ParamId};
use burn::nn::{LinearConfig, SwiGlu};
use burn::tensor::activation::{gelu, gelu_approximate, silu};
use burn::tensor::{Device, Tensor};

use crate::case::{Case, assert_case, assert_same_places};

fn layers(inputs: &[AnyTensor]) -> SwiGlu {
    let linear = |weight: &AnyTensor| {
        let mut linear = LinearConfig::new(1, 1)
            .with_bias(false)
            .init(&Device::flex());
        linear.weight = Param::initialized(ParamId::new(), weight.clone().of_dims());
        linear
    };
    SwiGlu {
        linear_inner: linear(&inputs[1]),
        linear_outer: linear(&inputs[2]),
    }
}

fn with_swiglu(rows: usize, columns: usize, check: impl Fn(&Case<'_, 3>)) {
    check(&Case {
        name: "swiglu",
        inputs: vec![vec![1, rows, 8], vec![8, columns], vec![8, columns]],
        operation: &|inputs| swiglu(&layers(inputs), inputs[0].clone().of_dims()),
        stock: &|inputs| {
            let x: Tensor<3> = inputs[0].clone().of_dims();
            let layers = layers(inputs);
            silu(layers.linear_inner.forward(x.clone())) * layers.linear_outer.forward(x)
        },
        exact: None,
    });
}

/// Checks `geglu` of a gate that is multiplied by `scale`.
fn with_geglu<const D: usize>(
    shape: [usize; D],
    scale: f64,
    is_approximate: bool,
    check: impl Fn(&Case<'_, D>),
) {
    let gate = |inputs: &[AnyTensor]| inputs[0].clone().of_dims::<D>() * scale;
    let up = |inputs: &[AnyTensor]| inputs[1].clone().of_dims::<D>();
    check(&Case {
        name: &format!("geglu, approximate: {is_approximate}, gate times {scale}"),
        inputs: vec![shape.to_vec(); 2],
        operation: &|inputs| geglu(gate(inputs), up(inputs), is_approximate),
        stock: &|inputs| match is_approximate {
            true => gelu_approximate(gate(inputs)) * up(inputs),
            false => gelu(gate(inputs)) * up(inputs),
        },
        exact: None,
    });
}

#[test]
fn gated_activations_equal_burn() {
    for [rows, columns] in [[3, 5], [70, 300], [1, 1], [0, 4]] {
        with_swiglu(rows, columns, assert_case);
        for is_approximate in [true, false] {
            with_geglu([1, rows, columns], 1.0, is_approximate, assert_case);
        }
    }
    for is_approximate in [true, false] {
        with_geglu([33], 4.0, is_approximate, assert_case);
    }
}

#[test]
fn gated_activations_spread_nan_and_infinity_as_burn() {
    with_swiglu(3, 17, assert_same_places);
    for is_approximate in [true, false] {
        with_geglu([3, 17], 1.0, is_approximate, assert_same_places);
    }
}
