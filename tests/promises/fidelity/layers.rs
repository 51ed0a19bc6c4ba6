//! Fidelity for models of all kinds of layers.

use burn::nn::conv::{Conv2d, Conv2dConfig, Conv3d, Conv3dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Lstm, LstmConfig, Relu};
use burn::tensor::activation::softmax;

use super::*;
use crate::backends::on_every_backend;

fn recurrent_weights_within_rounding(device: &Device) {
    #[derive(Module, Debug)]
    struct Recurrent {
        embedding: Linear,
        lstm: Lstm,
        head: Linear,
    }

    let x = random([2, 5, 3], device);
    let (_, stock, fused) = train_both(
        || Recurrent {
            embedding: LinearConfig::new(3, 4).init(device),
            lstm: LstmConfig::new(4, 4, true).init(device),
            head: LinearConfig::new(4, 2).init(device),
        },
        |model, _| {
            let (x, _) = model.lstm.forward(model.embedding.forward(x.clone()), None);
            square_mean(model.head.forward(x))
        },
    );
    // The gradients of a recurrent weight are summed in another order.
    assert_near_weights(&stock, &fused, 1e-6, 0.0);
}

/// Experts that all see each token, weighted by a gate.
#[derive(Module, Debug)]
struct Experts {
    gate: Linear,
    experts: Vec<Linear>,
}

impl Experts {
    fn init(device: &Device) -> Self {
        let linear = |to| LinearConfig::new(8, to).with_bias(false).init(device);
        Self {
            gate: linear(4),
            experts: (0..4).map(|_| linear(8)).collect(),
        }
    }

    /// `read` gives the value of a weight.
    fn forward(&self, x: Tensor<2>, mut read: impl FnMut(&Linear) -> Tensor<2>) -> Tensor<2> {
        let weights = softmax(x.clone().matmul(read(&self.gate)), 1);
        let experts = self.experts.iter().enumerate();
        let outputs = experts.map(|(place, expert)| {
            let output = Gelu::new().forward(x.clone().matmul(read(expert)));
            output * weights.clone().narrow(1, place, 1)
        });
        outputs.reduce(|a, b| a + b).expect("there are experts")
    }
}

/// Trains layers of experts both ways, each weight `deeper` on the tape by so many operations than the one before.
fn train_experts(layers: usize, deeper: usize, device: &Device) -> [Vec<Experts>; 2] {
    let x = random([16, 8], device);
    let (_, stock, fused) = train_both(
        || (0..layers).map(|_| Experts::init(device)).collect(),
        |model: &Vec<Experts>, _| {
            let mut depth = 0;
            let mut read = |linear: &Linear| {
                depth += deeper;
                (0..depth).fold(linear.weight.val(), |weight, _| weight.mul_scalar(1.0))
            };
            let layers = model.iter();
            square_mean(layers.fold(x.clone(), |x, layer| layer.forward(x, &mut read)))
        },
    );
    [stock, fused]
}

/// The tokens have a gradient from the gate and from each expert. In stock Burn these have one depth, in the fused form that
/// of the reads of their weights, so they are summed in another order.
fn experts_side_by_side_within_rounding(device: &Device) {
    let [stock, fused] = train_experts(3, 0, device);
    assert_near_weights(&stock, &fused, 1e-6, 0.0);
}

/// Nothing else differs: of tokens without a gradient, or where the depths are in the same order both ways.
fn experts_summed_in_one_order(device: &Device) {
    for (layers, deeper) in [(1, 0), (3, 32)] {
        let [stock, fused] = train_experts(layers, deeper, device);
        assert_equal_weights(&stock, &fused);
    }
}

#[derive(Module, Debug)]
pub struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Convolutional {
    pub fn init(device: &Device) -> Self {
        Self {
            // The gradient of a bias before a normalization is nothing but what is rounded off, which is the same both ways
            // only where all computing is.
            conv: Conv2dConfig::new([1, 3], [3, 3])
                .with_bias(is_exact(device))
                .init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(12, 2).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = Relu::new().forward(self.norm.forward(self.conv.forward(x)));
        self.head.forward(x.flatten(1, 3))
    }
}

fn batch_norm_with_running_statistics(device: &Device) {
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, step| square_mean(model.forward(x.clone() + step as f32)),
        |_| true,
    );
}

fn running_statistics_reach_the_validation_model(device: &Device) {
    let x = random([6, 1, 4, 4], device);
    let loss = |model: &Convolutional, _: usize| square_mean(model.forward(x.clone()));
    let initial = Convolutional::init(device);

    let stock = copy(&initial, || Convolutional::init(device));
    let stock = train_stock(stock, &mut AdamWConfig::new().init(), STEPS, RATE, loss);
    let fused = copy(&initial, || Convolutional::init(device));
    let mut fused = FusedOptimizer::new_ok(fused, AdamWConfig::new().init());
    train_fused(&mut fused, STEPS, RATE, loss);

    let x = x.clone().inner();
    let expected = stock.valid().forward(x.clone()).into_data();
    assert_eq!(fused.valid().forward(x).into_data(), expected);
}

#[derive(Module, Debug)]
enum Activation {
    Gelu(Gelu),
    Scaled(Param<Tensor<1>>),
}

#[derive(Module, Debug)]
struct Containers {
    optional: Option<Linear>,
    absent: Option<Linear>,
    list: Vec<Linear>,
    array: [Linear; 2],
    tuple: (Linear, LayerNorm),
    activations: Vec<Activation>,
    positions: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    constant: Tensor<2>,
    #[module(skip)]
    scale: f32,
}

fn option_vec_array_tuple_enum_int_and_bool_fields(device: &Device) {
    let linear = || LinearConfig::new(3, 3).init(device);
    let x = random([4, 3], device);
    let constant = random([4, 3], device);
    assert_fused_equals_stock(
        || Containers {
            optional: Some(linear()),
            absent: None,
            list: (0..3).map(|_| linear()).collect(),
            array: [linear(), linear()],
            tuple: (linear(), LayerNormConfig::new(3).init(device)),
            activations: vec![
                Activation::Gelu(Gelu::new()),
                Activation::Scaled(Param::from_data([0.5, 1.0, 2.0], device)),
            ],
            positions: Param::initialized(ParamId::new(), Tensor::from_data([2, 0, 1], device)),
            mask: Param::initialized(
                ParamId::new(),
                Tensor::from_data([[true, false, false]], device),
            ),
            constant: constant.clone(),
            scale: 0.5,
        },
        |model, _| {
            let mut x = x.clone().select(1, model.positions.val());
            x = x.mask_fill(model.mask.val().expand([4, 3]), 0.25) + model.constant.clone();
            for linear in model.optional.iter().chain(&model.absent) {
                x = linear.forward(x);
            }
            for linear in model.list.iter().chain(&model.array) {
                x = linear.forward(x.clone()) + x;
            }
            x = model.tuple.1.forward(model.tuple.0.forward(x));
            for activation in &model.activations {
                x = match activation {
                    Activation::Gelu(gelu) => gelu.forward(x),
                    Activation::Scaled(scale) => x * scale.val().unsqueeze(),
                };
            }
            square_mean(x * model.scale)
        },
        |_| true,
    );
}

fn parameters_of_rank_one_to_five(device: &Device) {
    #[derive(Module, Debug)]
    struct Ranks {
        one: Param<Tensor<1>>,
        two: Param<Tensor<2>>,
        three: Param<Tensor<3>>,
        four: Param<Tensor<4>>,
        conv: Conv3d,
    }

    let x = random([2, 1, 2, 2, 2], device);
    assert_fused_equals_stock(
        || Ranks {
            one: Param::from_tensor(random([2], device)),
            two: Param::from_tensor(random([2, 2], device)),
            three: Param::from_tensor(random([2, 2, 2], device)),
            four: Param::from_tensor(random([1, 2, 2, 2], device)),
            conv: Conv3dConfig::new([1, 1], [1, 1, 1]).init(device),
        },
        |model, _| {
            let x = model.conv.forward(x.clone()) * model.four.val().unsqueeze();
            let x = x * model.three.val().unsqueeze() + model.two.val().unsqueeze();
            square_mean(x * model.one.val().unsqueeze())
        },
        |_| true,
    );
}

fn several_forward_passes_in_one_step(device: &Device) {
    let (x, y) = (random([5, 3], device), random([5, 3], device));
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let of = |x: &Tensor<2>, head: &Linear| {
                square_mean(head.forward(model.body.forward(x.clone())))
            };
            of(&x, &model.first) + of(&y, &model.second)
        },
        |_| true,
    );
}

fn a_part_without_gradient_inside_the_step(device: &Device) {
    let x = random([5, 3], device);
    assert_fused_equals_stock(
        || TwoHeads::init(device),
        |model, _| {
            let judge = model.first.clone().no_grad();
            let target = model
                .valid()
                .second
                .forward(model.body.forward(x.clone()).inner());
            let judged = judge.forward(model.body.forward(x.clone()));
            square_mean(judged - Tensor::from_inner(target))
        },
        |path| path.starts_with("body"),
    );
}

fn transformer_encoder(device: &Device) {
    #[derive(Module, Debug)]
    struct Classifier {
        embedding: Embedding,
        encoder: TransformerEncoder,
        head: Linear,
    }

    assert_fused_equals_stock(
        || Classifier {
            embedding: EmbeddingConfig::new(7, 8).init(device),
            encoder: TransformerEncoderConfig::new(8, 16, 2, 2)
                .with_dropout(0.0)
                .with_norm_first(true)
                .init(device),
            head: LinearConfig::new(8, 2).init(device),
        },
        |model, _| {
            let x = model.embedding.forward(token_ids(device));
            let x = model.encoder.forward(TransformerEncoderInput::new(x));
            square_mean(model.head.forward(x))
        },
        |_| true,
    );
}

on_every_backend!(
    recurrent_weights_within_rounding,
    experts_side_by_side_within_rounding,
    experts_summed_in_one_order,
    batch_norm_with_running_statistics,
    running_statistics_reach_the_validation_model,
    option_vec_array_tuple_enum_int_and_bool_fields,
    parameters_of_rank_one_to_five,
    several_forward_passes_in_one_step,
    a_part_without_gradient_inside_the_step,
    transformer_encoder,
);
