//! Fidelity for models of all kinds of layers.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Lstm, LstmConfig, Relu};
use burn::tensor::activation::softmax;

use super::kinds::Zoo;
use super::*;

fn recurrent_weights_match_stock_within_rounding(device: &Device) {
    #[derive(Module, Debug)]
    struct Recurrent {
        embedding: Linear,
        lstm: Lstm,
        head: Linear,
    }

    let x = random([2, 5, 3], device);
    let [_, stock, fused] = train_both(
        || Recurrent {
            embedding: LinearConfig::new(3, 4).init(device),
            lstm: LstmConfig::new(4, 4, true).init(device),
            head: LinearConfig::new(4, 2).init(device),
        },
        &AdamWConfig::new().init(),
        STEPS,
        RATE,
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

/// The tokens have a gradient from the gate and from each expert. In stock Burn these have one depth. In fused training
/// they have the depths of the reads of their weights, so they are summed in another order. Nothing else differs: not
/// for tokens without a gradient, and not if each weight is deeper on the tape by `deeper` operations, so that the
/// depths have the same order in both.
fn experts_match_stock_but_for_order_of_sums(device: &Device) {
    for (layers, deeper, is_equal) in [(1, 0, true), (3, 32, true), (3, 0, false)] {
        let x = random([16, 8], device);
        let [_, stock, fused] = train_both(
            || (0..layers).map(|_| Experts::init(device)).collect(),
            &AdamWConfig::new().init(),
            STEPS,
            RATE,
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
        match is_equal {
            true => assert_equal_weights(&stock, &fused),
            false => assert_near_weights(&stock, &fused, 1e-6, 0.0),
        }
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
            // The gradient of a bias before a normalization is only rounding error. It is the same in both only if all
            // computations are the same.
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

fn batch_norm_statistics_match_stock(device: &Device) {
    let x = random([6, 1, 4, 4], device);
    assert_fused_equals_stock(
        || Convolutional::init(device),
        |model, step| square_mean(model.forward(x.clone() + step as f32)),
        |_| true,
    );
}

fn parameters_of_every_rank_and_kind_match_stock(device: &Device) {
    let x = random([4, 3], device);
    assert_fused_equals_stock(|| Zoo::init(device), |model, _| model.loss(&x), |_| true);
}

fn transformer_encoder_matches_stock(device: &Device) {
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

/// A model that follows its batch moves a layer so. Burn gives a fork leaves of its own, which the optimizer does not know.
fn layer_moved_or_forked_to_its_own_device_matches_stock(device: &Device) {
    let x = random([4, 3], device);
    for forks in [false, true] {
        assert_fused_equals_stock(
            || linears(2, 3, device),
            |model, _| {
                let first = match forks {
                    true => model[0].clone().fork(&x.device()),
                    false => model[0].clone().to_device(&x.device()),
                };
                square_mean(model[1].forward(first.forward(x.clone())))
            },
            |path| !forks || path.starts_with('1'),
        );
    }
}

on_every_backend!(
    layer_moved_or_forked_to_its_own_device_matches_stock,
    recurrent_weights_match_stock_within_rounding,
    experts_match_stock_but_for_order_of_sums,
    batch_norm_statistics_match_stock,
    parameters_of_every_rank_and_kind_match_stock,
    transformer_encoder_matches_stock,
);
