//! Operations of `backburn-nn` train in fused steps and in checkpointed blocks as in stock Burn.

use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, layer_norm, linear_cross_entropy,
    rms_norm, rotary, swiglu,
};
use burn::nn::{RmsNorm, RmsNormConfig, SwiGlu, SwiGluConfig};

use crate::common::*;

const LENGTH: usize = 9;
const DIM: usize = 8;

#[derive(Module, Debug)]
struct Decoder {
    embedding: Embedding,
    layer: Layer,
}

#[derive(Module, Debug)]
struct Layer {
    rms_norm: RmsNorm,
    layer_norm: LayerNorm,
    mlp: SwiGlu,
}

impl Decoder {
    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(11, DIM).init(device),
            layer: Layer {
                rms_norm: RmsNormConfig::new(DIM).init(device),
                layer_norm: LayerNormConfig::new(DIM).init(device),
                mlp: SwiGluConfig::new(DIM, DIM).init(device),
            },
        }
    }

    fn loss(&self, step: usize, is_in_block: bool) -> Tensor<1> {
        let device = self.embedding.weight.device();
        let text: Vec<i64> = (0..LENGTH)
            .map(|at| ((at * 7 + step) % 11) as i64)
            .collect();
        let text = Tensor::<1, Int>::from_data(&text[..], &device);
        let x = self.embedding.forward(text.clone().unsqueeze());
        let run = |layer: &Layer, x| layer.forward(x);
        let x = match is_in_block {
            true => gradient_checkpointing(&self.layer, x, run),
            false => run(&self.layer, x),
        };
        let head = self.embedding.weight.val();
        let options = LinearCrossEntropyOptions {
            chunk_size: 4,
            ..Default::default()
        };
        let losses = linear_cross_entropy(x.squeeze_dim(0), head, text, None, &options);
        losses / LENGTH as f64
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let heads = rms_norm(&self.rms_norm, x);
        let heads = heads.reshape([1, LENGTH, 2, DIM / 2]).swap_dims(1, 2);
        let angles = Tensor::<1, Int>::arange(0..(LENGTH * DIM / 4) as i64, &heads.device());
        let angles = angles.float().reshape([1, 1, LENGTH, DIM / 4]);
        let heads = rotary(heads, angles.clone().cos(), angles.sin());
        let options = AttentionOptions {
            is_causal: true,
            ..Default::default()
        };
        let mixed = attention(heads.clone(), heads.clone(), heads, None, options);
        let x = mixed.swap_dims(1, 2).reshape([1, LENGTH, DIM]);
        swiglu(&self.mlp, layer_norm(&self.layer_norm, 1e-5, x))
    }
}

#[test]
fn own_backward_trains_as_stock_in_steps_and_blocks() {
    for device in cpus() {
        for is_in_block in [false, true] {
            let [initial, stock, fused] = train_both(
                || Decoder::init(&device),
                &AdamWConfig::new().init(),
                3,
                1e-2,
                |model, step| model.loss(step, is_in_block),
            );
            assert_equal_weights(&stock, &fused);
            assert_changed(&initial, &fused, |_| true);
        }
    }
}
