//! A decoder of the operations of `backburn-nn`.

use backburn::gradient_checkpointing;
use backburn_nn::{
    AttentionOptions, LinearCrossEntropyOptions, attention, embedding, layer_norm, linear,
    linear_cross_entropy, rms_norm, swiglu,
};
use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::tensor::{Device, Int, Tensor};

const LENGTH: usize = 15;

/// A decoder with one layer, whose head is the embedding. It has more classes than tokens, some of which are equal.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: Embedding,
    layer: Layer,
}

#[derive(Module, Debug)]
struct Layer {
    rms_norm: RmsNorm,
    output: Linear,
    layer_norm: LayerNorm,
    mlp: SwiGlu,
}

impl Decoder {
    pub fn init(device: &Device) -> Self {
        Self::of_width(8, device)
    }

    pub fn of_width(width: usize, device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(2 * width, width).init(device),
            layer: Layer {
                rms_norm: RmsNormConfig::new(width).init(device),
                output: LinearConfig::new(width, width).init(device),
                layer_norm: LayerNormConfig::new(width).init(device),
                mlp: SwiGluConfig::new(width, width).init(device),
            },
        }
    }

    /// Returns the loss of the text of this number.
    pub fn loss(&self, text: usize, is_in_block: bool) -> Tensor<1> {
        let device = self.embedding.weight.device();
        let text: Vec<i64> = (0..LENGTH)
            .map(|at| ((at * 7 + text) % 11) as i64)
            .collect();
        let text = Tensor::<1, Int>::from_data(&text[..], &device);
        let x = embedding(&self.embedding, text.clone().unsqueeze());
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
        let width = x.dims()[2];
        let heads = rms_norm(&self.rms_norm, x);
        let heads = heads.reshape([1, LENGTH, 2, width / 2]).swap_dims(1, 2);
        let options = AttentionOptions {
            is_causal: true,
            ..Default::default()
        };
        let mixed = attention(heads.clone(), heads.clone(), heads, None, options);
        let x = mixed.swap_dims(1, 2).reshape([1, LENGTH, width]);
        let x = linear(&self.output, x);
        swiglu(&self.mlp, layer_norm(&self.layer_norm, 1e-5, x))
    }
}
