//! Linear layer.

use backburn_base::AnyTensor;
use backburn_base::caught::catch_message;
use backburn_nn::linear;
use burn::module::{LoraAdapter, Module, Param, ParamId, Reparameterizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::case::{Case, assert_case, assert_same_places, param};

/// A layer with the second and third of `inputs` as weight and bias.
fn layer(inputs: &[AnyTensor], is_transposed: bool) -> Linear {
    let mut layer = LinearConfig::new(1, 1).init(&Device::flex());
    let weight: Tensor<2> = inputs[1].clone().of_dims();
    let weight = match is_transposed {
        true => weight.transpose(),
        false => weight,
    };
    layer.weight = Param::initialized(ParamId::new(), weight);
    layer.bias = inputs.get(2).map(param);
    layer
}

fn with_linear<const D: usize>(
    shape: [usize; D],
    d_output: usize,
    [has_bias, is_transposed]: [bool; 2],
    check: impl Fn(&Case<'_, D>),
) {
    let mut weight = vec![shape[D - 1], d_output];
    if is_transposed {
        weight.reverse();
    }
    let mut inputs = vec![shape.to_vec(), weight];
    inputs.extend(has_bias.then(|| vec![d_output]));
    let x = |inputs: &[AnyTensor]| inputs[0].clone().of_dims::<D>();
    check(&Case {
        name: &format!("linear, bias: {has_bias}, transposed weight: {is_transposed}"),
        inputs,
        operation: &|inputs| linear(&layer(inputs, is_transposed), x(inputs)),
        stock: &|inputs| layer(inputs, is_transposed).forward(x(inputs)),
        exact: None,
    });
}

const LAYERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn linear_equals_burn() {
    for layer in LAYERS {
        for (shape, d_output) in [([2, 3, 8], 5), ([1, 1, 1], 1), ([2, 0, 8], 3)] {
            with_linear(shape, d_output, layer, assert_case);
        }
        with_linear([70, 33], 17, layer, assert_case);
        if let [false, _] = layer {
            with_linear([2, 3, 0], 4, layer, assert_case);
        }
        with_linear([2, 1, 3, 4], 6, layer, assert_case);
    }
    // Large enough for several threads.
    with_linear([300, 200], 210, [true, false], assert_case);
}

#[test]
fn linear_spreads_nan_and_infinity_as_burn() {
    for layer in LAYERS {
        with_linear([2, 3, 17], 4, layer, assert_same_places);
    }
}

/// Attaches this adapter to a parameter.
pub struct AttachAdapter(pub LoraAdapter);

impl Reparameterizer for AttachAdapter {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        (param, Some(self.0.clone()))
    }
}

/// A layer without bias whose weight, the second of `inputs`, has an adapter of the third and fourth.
fn adapted(inputs: &[AnyTensor], is_frozen: bool) -> Linear {
    let param =
        |input: &AnyTensor| Param::initialized(ParamId::new(), input.clone().of_dims::<2>());
    let mut layer = layer(&inputs[..2], false);
    if is_frozen {
        let frozen = layer.weight.val().detach().set_require_grad(false);
        layer.weight = Param::initialized(ParamId::new(), frozen);
    }
    layer.apply_reparameterization(AttachAdapter(LoraAdapter {
        a: param(&inputs[2]),
        b: param(&inputs[3]),
        scale: 0.5,
    }))
}

#[test]
fn linear_with_adapter_equals_composed_weight() {
    for is_frozen in [true, false] {
        for (rows, d_input, rank, d_output) in [(3, 8, 2, 5), (1, 1, 1, 1), (70, 33, 4, 17)] {
            let x = |inputs: &[AnyTensor]| inputs[0].clone().of_dims::<3>();
            assert_case(&Case {
                name: &format!("linear with adapter, frozen: {is_frozen}"),
                inputs: vec![
                    vec![2, rows, d_input],
                    vec![d_input, d_output],
                    vec![d_input, rank],
                    vec![rank, d_output],
                ],
                operation: &|inputs| linear(&adapted(inputs, is_frozen), x(inputs)),
                stock: &|inputs| adapted(inputs, is_frozen).forward(x(inputs)),
                exact: None,
            });
        }
    }
}

#[test]
fn linear_of_two_types_is_refused_as_in_burn() {
    let layer: Linear = LinearConfig::new(4, 3).init(&Device::flex());
    let x = Tensor::<2>::ones([2, 4], &Device::flex()).cast(FloatDType::BF16);
    assert!(catch_message(|| layer.forward(x.clone())).is_err());
    assert!(catch_message(|| linear(&layer, x)).is_err());
}
