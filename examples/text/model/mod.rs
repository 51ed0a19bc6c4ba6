//! A decoder of Burn's modules: rotary positions, RMS norm, grouped heads with a sliding window, experts.

mod attention;
mod experts;
mod layer;
mod preset;

use backburn::gradient_checkpointing;
use backburn_nn::{LinearCrossEntropyOptions, embedding, linear_cross_entropy, rms_norm};
use burn::module::Initializer;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;

use layer::Layer;
pub use preset::Preset;

/// Size of a language model; by default [`Preset::Small`].
#[derive(Config, Debug, PartialEq)]
pub struct LanguageModelConfig {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Number of tokens of the context.
    #[config(default = 128)]
    pub context: usize,
    /// Width of the residual stream.
    #[config(default = 128)]
    pub dim: usize,
    /// Number of layers.
    #[config(default = 4)]
    pub depth: usize,
    /// Number of attention heads; divides `dim`.
    #[config(default = 4)]
    pub heads: usize,
    /// Number of heads for keys and values; divides `heads`.
    #[config(default = 2)]
    pub key_value_heads: usize,
    /// Number of tokens in the attention window, including the token itself.
    #[config(default = 64)]
    pub window: usize,
    /// Number of experts in a layer.
    #[config(default = 4)]
    pub experts: usize,
    /// Number of active experts for a token.
    #[config(default = 2)]
    pub experts_per_token: usize,
    /// Width of an expert.
    #[config(default = 256)]
    pub expert_dim: usize,
    /// Uses the embedding as the head.
    #[config(default = false)]
    pub tied: bool,
    /// Makes each layer a checkpointed block in fused training.
    #[config(default = false)]
    pub recompute_layers: bool,
    /// Number of tokens whose logits are in memory at a time; all if `None`.
    pub loss_chunk: Option<usize>,
    /// Number of tokens that the experts of a layer compute at a time; all if `None`.
    pub tile: Option<usize>,
}

/// Weight of the load-balancing loss, as in the [Switch Transformer](https://arxiv.org/abs/2101.03961).
const BALANCE: f64 = 0.01;

impl LanguageModelConfig {
    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> LanguageModel {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        let rotary = self.rotary(device);
        let layer = |_| Layer::init(self, rotary.clone(), device);
        let head = LinearConfig::new(self.dim, self.vocabulary)
            .with_bias(false)
            .with_initializer(small.clone());
        LanguageModel {
            embedding: EmbeddingConfig::new(self.vocabulary, self.dim)
                .with_initializer(small)
                .init(device),
            layers: (0..self.depth).map(layer).collect(),
            norm: RmsNormConfig::new(self.dim).init(device),
            head: (!self.tied).then(|| head.init(device)),
            recompute_layers: self.recompute_layers,
            loss_chunk: self.loss_chunk,
            tile: self.tile,
        }
    }
}

/// A causal language model.
#[derive(Module, Debug)]
pub struct LanguageModel {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None` if the embedding is the head.
    head: Option<Linear>,
    #[module(skip)]
    recompute_layers: bool,
    #[module(skip)]
    loss_chunk: Option<usize>,
    #[module(skip)]
    tile: Option<usize>,
}

/// Losses of a training step.
pub struct Losses {
    /// Cross entropy plus the weighted load-balancing loss. Shape: `[1]`.
    pub total: Tensor<1>,
    /// Mean cross entropy in nats per token. Shape: `[1]`.
    pub cross_entropy: Tensor<1>,
}

impl LanguageModel {
    /// Returns the losses of every token of `text` except the first. Shape of `text`: `[batch, context + 1]`.
    pub fn losses(&self, text: Tensor<2, Int>) -> Losses {
        let [batch, length] = text.dims();
        let length = length - 1;
        let (hidden, balance) = self.hidden(text.clone().narrow(1, 0, length));
        let hidden = hidden.reshape([(batch * length) as i32, -1]);
        let next = text.narrow(1, 1, length).reshape([batch * length]);
        let cross_entropy = self.cross_entropy(hidden, next);
        Losses {
            total: cross_entropy.clone() + balance.mul_scalar(BALANCE),
            cross_entropy: cross_entropy.detach(),
        }
    }

    /// Returns the logits of the token after `text`.
    ///
    /// # Shapes
    ///
    /// - text: `[batch, length]`, up to the context
    /// - output: `[batch, vocabulary]`
    pub fn next(&self, text: Tensor<2, Int>) -> Tensor<2> {
        let (hidden, _) = self.hidden(text);
        let [_, length, _] = hidden.dims();
        let last = hidden.narrow(1, length - 1, 1).squeeze_dim::<2>(1);
        last.matmul(self.head().transpose())
    }

    /// Returns the weight of the head, `[vocabulary, dim]`.
    fn head(&self) -> Tensor<2> {
        match &self.head {
            Some(head) => head.weight.val().transpose(),
            None => self.embedding.weight.val(),
        }
    }

    /// Returns the hidden states before the head, `[batch, length, dim]`, and the mean load-balancing loss of the layers,
    /// `[1]`.
    fn hidden(&self, text: Tensor<2, Int>) -> (Tensor<3>, Tensor<1>) {
        let tile = self.tile;
        let run = move |layer: &Layer, x| layer.forward(x, tile);
        let mut balance = Tensor::zeros([1], &text.device());
        let mut x = embedding(&self.embedding, text);
        for layer in &self.layers {
            let (output, of_layer) = match self.recompute_layers {
                true => gradient_checkpointing(layer, x, run),
                false => run(layer, x),
            };
            x = output;
            balance = balance + of_layer;
        }
        let layers = self.layers.len() as f64;
        (rms_norm(&self.norm, x), balance.div_scalar(layers))
    }

    /// Returns the mean cross entropy of the tokens `next`, `[tokens]`, from the states `hidden`, `[tokens, dim]`.
    fn cross_entropy(&self, hidden: Tensor<2>, next: Tensor<1, Int>) -> Tensor<1> {
        let (tokens, head) = (next.dims()[0], self.head());
        let Some(chunk_size) = self.loss_chunk else {
            // In f32 for any type of the weights, because probabilities need this precision.
            let logits = hidden.matmul(head.transpose()).cast(FloatDType::F32);
            let loss = CrossEntropyLossConfig::new().init(&logits.device());
            return loss.forward(logits, next);
        };
        let options = LinearCrossEntropyOptions {
            chunk_size,
            ..Default::default()
        };
        linear_cross_entropy(hidden, head, next, None, &options) / tokens as f64
    }
}
