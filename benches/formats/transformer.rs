//! A causal transformer over bytes, made of Burn's encoder.

use backburn::gradient_checkpointing;
use burn::module::{Initializer, Param};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderLayer,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;

/// Every byte is a token.
pub const VOCABULARY: usize = 256;

/// The size of a transformer.
#[derive(Config, Debug)]
pub struct TransformerConfig {
    /// Context of the model in bytes.
    pub context: usize,
    /// Width of the residual stream.
    #[config(default = 256)]
    pub dim: usize,
    /// Number of encoder layers.
    #[config(default = 8)]
    pub depth: usize,
    /// Number of attention heads; divides `dim`.
    #[config(default = 8)]
    pub heads: usize,
    /// Dropout probability.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Makes each layer a checkpointed block in fused training.
    #[config(default = false)]
    pub recompute_layers: bool,
}

impl TransformerConfig {
    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> Transformer {
        let embedding = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        let layers = TransformerEncoderConfig::new(self.dim, 4 * self.dim, self.heads, self.depth)
            .with_dropout(self.dropout)
            .with_norm_first(true);
        Transformer {
            embedding: EmbeddingConfig::new(VOCABULARY, self.dim)
                .with_initializer(embedding.clone())
                .init(device),
            positions: embedding.init([1, self.context, self.dim], device),
            encoder: layers.init(device),
            norm: LayerNormConfig::new(self.dim).init(device),
            recompute_layers: self.recompute_layers,
        }
    }
}

/// A causal transformer; the embedding is the output layer, too.
#[derive(Module, Debug)]
pub struct Transformer {
    embedding: Embedding,
    positions: Param<Tensor<3>>,
    encoder: TransformerEncoder,
    norm: LayerNorm,
    #[module(skip)]
    recompute_layers: bool,
}

impl Transformer {
    /// Returns the mean cross entropy, in nats per byte, of every byte of `text` except the first. Shape of `text`: `[batch,
    /// context + 1]`.
    pub fn loss(&self, text: Tensor<2, Int>) -> Tensor<1> {
        let [batch, length] = text.dims();
        let length = length - 1;
        let logits = self.forward(text.clone().narrow(1, 0, length));
        let next = text.narrow(1, 1, length).reshape([batch * length]);
        // In f32 for any type of the weights, because probabilities need this precision.
        let logits = logits.reshape([batch * length, VOCABULARY]);
        CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.cast(FloatDType::F32), next)
    }

    /// Predicts the next byte of every byte.
    ///
    /// # Shapes
    ///
    /// - text: `[batch, length]`, up to the context
    /// - output (logits): `[batch, length, 256]`
    pub fn forward(&self, text: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = text.dims();
        let mask = generate_autoregressive_mask(batch, length, &text.device());
        let x = self.embedding.forward(text) + self.positions.val().narrow(1, 0, length);

        let forward = |layer: &TransformerEncoderLayer, (x, mask): (Tensor<3>, Tensor<3, Bool>)| {
            layer.forward(x, None, Some(mask))
        };
        let x = self.encoder.layers.iter().fold(x, |x, layer| {
            let input = (x, mask.clone());
            match self.recompute_layers {
                true => gradient_checkpointing(layer, input, forward),
                false => forward(layer, input),
            }
        });
        let output = self.embedding.weight.val().transpose();
        self.norm.forward(x).matmul(output.unsqueeze())
    }
}
