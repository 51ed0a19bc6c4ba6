//! Each operation beside Burn's composition: outputs and gradients, in each type, on any number of threads.

#![cfg(feature = "flex")]

mod common;

use backburn_base::AnyTensor;
use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, geglu, layer_norm,
    linear_cross_entropy, rms_norm, rotary, swiglu,
};
use burn::module::{Param, ParamId};
use burn::nn::{LayerNorm, LayerNormConfig, LinearConfig, RmsNorm, SwiGlu};
use burn::tensor::activation::{gelu, gelu_approximate, log_softmax, silu};
use burn::tensor::module as stock;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, FloatDType, Int, Tensor, TensorData};

use common::{Case, assert_case, param};

const EPSILON: f64 = 1e-3;

fn rms(gamma: &AnyTensor) -> RmsNorm {
    RmsNorm {
        gamma: param(gamma),
        epsilon: EPSILON,
    }
}

#[test]
fn rms_norm_equals_burn() {
    for shape in [[3, 5, 64], [1, 300, 96], [2, 1, 3], [1, 7, 37], [2, 0, 8]] {
        assert_case::<3>(&Case {
            name: "rms_norm",
            inputs: vec![shape.to_vec(), vec![shape[2]]],
            operation: &|inputs| rms_norm(&rms(&inputs[1]), inputs[0].clone().of_rank()),
            stock: &|inputs| rms(&inputs[1]).forward(inputs[0].clone().of_rank()),
            // Burn's norm is in f32 in a model in f64.
            exact: Some(&|inputs| {
                let x: Tensor<3> = inputs[0].clone().of_rank();
                let squares = x.clone().square().mean_dim(2);
                x / (squares + EPSILON).sqrt() * inputs[1].clone().of_rank::<1>().unsqueeze()
            }),
        });
    }
}

fn layer(gamma: &AnyTensor, beta: Option<&AnyTensor>) -> LayerNorm {
    let config = LayerNormConfig::new(1).with_epsilon(EPSILON);
    let mut norm = config.with_bias(beta.is_some()).init(&Device::flex());
    norm.gamma = param(gamma);
    norm.beta = beta.map(param);
    norm
}

#[test]
fn layer_norm_equals_burn() {
    for shape in [[3, 5, 64], [1, 300, 96], [1, 7, 37], [2, 0, 8]] {
        for has_beta in [true, false] {
            let mut inputs = vec![shape.to_vec(), vec![shape[2]]];
            if has_beta {
                inputs.push(vec![shape[2]]);
            }
            assert_case::<3>(&Case {
                name: "layer_norm",
                inputs,
                operation: &|inputs| {
                    let norm = layer(&inputs[1], inputs.get(2));
                    layer_norm(&norm, EPSILON, inputs[0].clone().of_rank())
                },
                stock: &|inputs| {
                    layer(&inputs[1], inputs.get(2)).forward(inputs[0].clone().of_rank())
                },
                exact: None,
            });
        }
    }
}

fn swiglu_layers(inputs: &[AnyTensor]) -> SwiGlu {
    let linear = |weight: &AnyTensor| {
        let mut linear = LinearConfig::new(1, 1)
            .with_bias(false)
            .init(&Device::flex());
        linear.weight = Param::initialized(ParamId::new(), weight.clone().of_rank());
        linear
    };
    SwiGlu {
        linear_inner: linear(&inputs[1]),
        linear_outer: linear(&inputs[2]),
    }
}

#[test]
fn gated_activations_equal_burn() {
    for [rows, columns] in [[3, 5], [70, 300], [0, 4]] {
        let inputs = vec![vec![1, rows, columns]; 2];
        assert_case::<3>(&Case {
            name: "swiglu",
            inputs: vec![vec![1, rows, 8], vec![8, columns], vec![8, columns]],
            operation: &|inputs| swiglu(&swiglu_layers(inputs), inputs[0].clone().of_rank()),
            stock: &|inputs| {
                let x: Tensor<3> = inputs[0].clone().of_rank();
                let layers = swiglu_layers(inputs);
                silu(layers.linear_inner.forward(x.clone())) * layers.linear_outer.forward(x)
            },
            exact: None,
        });
        for is_approximate in [true, false] {
            assert_case::<3>(&Case {
                name: "geglu",
                inputs: inputs.clone(),
                operation: &|inputs| {
                    let [gate, up] = [0, 1].map(|index: usize| inputs[index].clone().of_rank());
                    geglu(gate, up, is_approximate)
                },
                stock: &|inputs| {
                    let [gate, up] = [0, 1].map(|index: usize| inputs[index].clone().of_rank());
                    match is_approximate {
                        true => gelu_approximate(gate) * up,
                        false => gelu(gate) * up,
                    }
                },
                exact: None,
            });
        }
    }
}

/// Returns tables for any positions, of the shape `[tables, 1, length, half]`.
fn tables(tables: usize, length: usize, half: usize, like: &AnyTensor) -> [Tensor<4>; 2] {
    let angles: Vec<f32> = (0..tables * length * half)
        .map(|index| index as f32 * 0.37)
        .collect();
    let angles = TensorData::new(angles, [tables, 1, length, half]);
    let angles = Tensor::<4>::from_data(angles, &Device::flex());
    let dtype = burn::tensor::FloatDType::from(like.dtype());
    [angles.clone().cos(), angles.sin()].map(|table| table.cast(dtype))
}

#[test]
fn rotary_equals_composition() {
    for ([batch, heads, length, dim], of_tables) in [
        ([1, 2, 3, 4], 1),
        ([2, 3, 70, 16], 1),
        ([2, 3, 5, 16], 2),
        ([1, 0, 3, 4], 1),
        ([1, 2, 0, 4], 1),
    ] {
        for is_split in [false, true] {
            // Heads as the layers of attention have them: a view.
            let shape = match is_split {
                true => vec![batch, length, heads, dim],
                false => vec![batch, heads, length, dim],
            };
            let input = move |inputs: &[AnyTensor]| {
                let x: Tensor<4> = inputs[0].clone().of_rank();
                if is_split { x.swap_dims(1, 2) } else { x }
            };
            assert_case::<4>(&Case {
                name: "rotary",
                inputs: vec![shape],
                operation: &|inputs| {
                    let [cos, sin] = tables(of_tables, length, dim / 2, &inputs[0]);
                    rotary(input(inputs), cos, sin)
                },
                stock: &|inputs| {
                    let [cos, sin] = tables(of_tables, length, dim / 2, &inputs[0]);
                    let x = input(inputs);
                    let (a, b) = (
                        x.clone().narrow(3, 0, dim / 2),
                        x.narrow(3, dim / 2, dim / 2),
                    );
                    let turned = a.clone() * cos.clone() - b.clone() * sin.clone();
                    Tensor::cat(vec![turned, b * cos + a * sin], 3)
                },
                exact: None,
            });
        }
    }
}

/// Returns keys or values with a copy for each head of queries.
fn repeated(few: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, groups, length, dim] = few.dims();
    let many = few.unsqueeze_dim::<5>(2);
    let many = many.expand([batch, groups, heads / groups, length, dim]);
    many.reshape([batch, heads, length, dim])
}

/// Returns a mask that hides about a third of the positions, and all of the third query.
fn mask([batch, heads, queries, keys]: [usize; 4]) -> Tensor<4, Bool> {
    let hidden: Vec<bool> = (0..batch * heads * queries * keys)
        .map(|index| index * 7 % 3 == 0 || index / keys % queries == 2)
        .collect();
    let data = TensorData::new(hidden, [batch, heads, queries, keys]);
    Tensor::from_data(data, &Device::flex())
}

#[test]
fn attention_equals_burn() {
    // Batch, heads, groups, queries, keys, head and value dimension.
    let sizes = [
        [1, 2, 2, 5, 5, 8, 8],
        [2, 6, 2, 70, 70, 16, 16],
        [1, 3, 1, 130, 130, 8, 4],
        [2, 2, 1, 3, 9, 4, 8],
        [1, 2, 2, 9, 3, 4, 4],
        [0, 2, 1, 4, 4, 8, 8],
        [1, 2, 1, 4, 0, 8, 8],
    ];
    let options = [
        (false, None, None, None),
        (true, None, None, None),
        (true, Some(3), None, Some(0.2)),
        (false, Some(2), Some(1), None),
        (true, None, Some(2), None),
    ];
    for [batch, heads, groups, queries, keys, head_dim, value_dim] in sizes {
        for (is_causal, window, of_mask, scale) in options {
            let mask = of_mask.map(|all: usize| {
                let first = if all == 1 { [1, 1] } else { [batch, heads] };
                mask([first[0], first[1], queries, keys])
            });
            // A view, as the layers of attention have it.
            let split = |input: &AnyTensor| input.clone().of_rank::<4>().swap_dims(1, 2);
            let options = AttentionOptions {
                is_causal,
                window,
                scale,
            };
            assert_case::<4>(&Case {
                name: &format!("attention, {options:?}, mask: {of_mask:?}"),
                inputs: vec![
                    vec![batch, queries, heads, head_dim],
                    vec![batch, groups, keys, head_dim],
                    vec![batch, keys, groups, value_dim],
                ],
                operation: &|inputs| {
                    let key = inputs[1].clone().of_rank();
                    let (query, value) = (split(&inputs[0]), split(&inputs[2]));
                    attention(query, key, value, mask.clone(), options)
                },
                stock: &|inputs| {
                    let key = repeated(inputs[1].clone().of_rank(), heads);
                    let value = repeated(split(&inputs[2]), heads);
                    let shape = [batch, heads, queries, keys];
                    let device = Device::flex();
                    let mut hidden = mask.clone().map(|mask| mask.expand(shape));
                    if let Some(window) = window {
                        let window = keys as i64 - queries as i64 - window as i64;
                        let before = Tensor::<2, Bool>::tril_mask([queries, keys], window, &device);
                        let before = before.bool_not().unsqueeze::<4>().expand(shape);
                        hidden = Some(match hidden {
                            Some(hidden) => hidden.bool_or(before),
                            None => before,
                        });
                    }
                    let options = AttentionModuleOptions {
                        scale,
                        is_causal,
                        ..Default::default()
                    };
                    stock::attention(split(&inputs[0]), key, value, hidden, None, options)
                },
                exact: None,
            });
        }
    }
}

#[test]
fn linear_cross_entropy_equals_composition() {
    let ignored = Some(-100);
    for (tokens, classes, d_model, options) in [
        (5, 11, 6, LinearCrossEntropyOptions::default()),
        (
            // The products of a chunk run on several threads: `gemm` uses them from 48 * 48 * 256 multiplications on.
            70,
            1100,
            32,
            LinearCrossEntropyOptions {
                chunk_size: 32,
                ignored,
                ..Default::default()
            },
        ),
        (
            9,
            37,
            8,
            LinearCrossEntropyOptions {
                chunk_size: 4,
                ignored,
                smoothing: 0.1,
                soft_cap: Some(3.0),
            },
        ),
        (0, 3, 4, LinearCrossEntropyOptions::default()),
    ] {
        let target = |token: usize| match token % 3 == 1 && options.ignored.is_some() {
            true => -100,
            false => (token * 7 % classes) as i64,
        };
        let targets: Vec<i64> = (0..tokens).map(target).collect();
        let of_tokens: Vec<f32> = (0..tokens).map(|token| token as f32 * 0.5 - 1.0).collect();
        for (is_transposed, is_weighted) in [(false, false), (true, true)] {
            let targets = || {
                let data = TensorData::new(targets.clone(), [tokens]);
                Tensor::<1, Int>::from_data(data, &Device::flex())
            };
            let weights = || {
                let data = TensorData::new(of_tokens.clone(), [tokens]);
                is_weighted.then(|| Tensor::<1>::from_data(data, &Device::flex()))
            };
            let weight = |inputs: &[AnyTensor]| {
                let weight: Tensor<2> = inputs[1].clone().of_rank();
                if is_transposed {
                    weight.transpose()
                } else {
                    weight
                }
            };
            let of_weight = match is_transposed {
                true => vec![d_model, classes],
                false => vec![classes, d_model],
            };
            assert_case::<1>(&Case {
                name: &format!("linear_cross_entropy, {options:?}, weighted: {is_weighted}"),
                inputs: vec![vec![tokens, d_model], of_weight],
                operation: &|inputs| {
                    let hidden = inputs[0].clone().of_rank();
                    linear_cross_entropy(hidden, weight(inputs), targets(), weights(), &options)
                },
                stock: &|inputs| {
                    let hidden: Tensor<2> = inputs[0].clone().of_rank();
                    let logits = hidden.matmul(weight(inputs).transpose());
                    let dtype = match logits.dtype() {
                        DType::F64 => FloatDType::F64,
                        _ => FloatDType::F32,
                    };
                    let logits = logits.cast(dtype);
                    let logits = match options.soft_cap {
                        // Burn's gradient of a division by a number is rounded to f32.
                        Some(cap) => (logits * cap.recip()).tanh() * cap,
                        None => logits,
                    };
                    let all = log_softmax(logits, 1);
                    let is_ignored = targets().equal_scalar(options.ignored.unwrap_or(-1));
                    let index = targets()
                        .mask_fill(is_ignored.clone(), 0)
                        .reshape([tokens, 1]);
                    let of_targets = all.clone().gather(1, index).reshape([tokens]);
                    let of_all = all.sum_dim(1).reshape([tokens]) * (classes as f64).recip();
                    let share = options.smoothing;
                    let losses = (of_targets * (1.0 - share) + of_all * share).neg();
                    let losses = losses.mask_fill(is_ignored, 0);
                    match weights() {
                        Some(weights) => (losses * weights.cast(dtype)).sum(),
                        None => losses.sum(),
                    }
                },
                exact: None,
            });
        }
    }
}
