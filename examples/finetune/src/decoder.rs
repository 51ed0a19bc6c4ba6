//! The decoder of `llama`, `mistral`, `qwen2` and `qwen3`.
//!
//! Fields have the names of [`WeightNames::decoder`](backburn::WeightNames::decoder), which maps those in files of `transformers`.

use backburn::gradient_checkpointing;
use backburn_nn::{
    LinearCrossEntropyOptions, embedding, linear, linear_cross_entropy, rms_norm, swiglu,
};
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::prelude::*;

use crate::attention::Attention;
use crate::config::DecoderConfig;
use crate::packed::Packed;
use crate::rope::Rope;

/// A target that does not count.
pub const IGNORED: i64 = -100;

/// A target that does not count, because the next token of the row begins another document.
pub const LAST: i64 = -101;

/// Tokens in a chunk of the loss. With fewer, the head is read, and its gradient added, more often; with more, the logits of a chunk
/// and their gradients are more than the activations of a layer.
const CHUNK: usize = 128;

/// A language model.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None` if the embedding is the head, too.
    head: Option<Linear>,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    windows: Vec<Option<usize>>,
    /// `true` if each layer is a checkpointed block: it keeps only its input and is recomputed in the backward pass.
    #[module(skip)]
    recompute: bool,
}

/// Attention, then an MLP, each behind a norm and with a residual.
#[derive(Module, Debug)]
struct Layer {
    norm_1: RmsNorm,
    attention: Attention,
    norm_2: RmsNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Mlp {
    swiglu: SwiGlu,
    output: Linear,
}

impl Decoder {
    /// Returns a decoder whose weights are made when they are first read, or loaded before.
    pub fn init(config: &DecoderConfig, recompute: bool, device: &Device) -> Self {
        let norm = RmsNormConfig::new(config.hidden).with_epsilon(config.epsilon);
        let head = LinearConfig::new(config.hidden, config.vocabulary).with_bias(false);
        let layer = |_| Layer {
            norm_1: norm.init(device),
            attention: Attention::init(config, device),
            norm_2: norm.init(device),
            mlp: Mlp::init(config, device),
        };
        Self {
            embedding: EmbeddingConfig::new(config.vocabulary, config.hidden).init(device),
            layers: (0..config.layers()).map(layer).collect(),
            norm: norm.init(device),
            head: (!config.tied).then(|| head.init(device)),
            rope: config.rope.clone(),
            windows: config.windows.clone(),
            recompute,
        }
    }

    /// Returns the sum of the cross entropies of `targets` in nats, those that are [`IGNORED`] or [`LAST`] left out. A token attends
    /// only to tokens of its document, whose positions begin at 0.
    ///
    /// # Shapes
    ///
    /// - tokens, targets: `[batch, length]`
    /// - output: `[1]`
    pub fn sum_of_losses(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let hidden = self.hidden(tokens, Packed::read(&targets));
        let [batch, length, dim] = hidden.dims();
        let hidden = hidden.reshape([batch * length, dim]);
        let targets = targets.reshape([batch * length]);
        let is_last = targets.clone().equal_scalar(LAST);
        let targets = targets.mask_fill(is_last, IGNORED);
        let weight = match &self.head {
            Some(head) => head.weight.val().transpose(),
            None => self.embedding.weight.val(),
        };
        let options = LinearCrossEntropyOptions {
            chunk_size: CHUNK,
            ignored: Some(IGNORED),
            ..Default::default()
        };
        linear_cross_entropy(hidden, weight, targets, None, &options)
    }

    /// Returns the logits of what follows on each token.
    ///
    /// # Shapes
    ///
    /// - tokens: `[batch, length]`
    /// - output: `[batch, length, vocabulary]`
    pub fn logits(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.head(self.hidden(tokens, None))
    }

    /// Returns the logits of what follows on the last token. Shapes: `[batch, length]`, `[batch, vocabulary]`.
    pub fn next(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [_, length] = tokens.dims();
        let last = self.hidden(tokens, None).narrow(1, length - 1, 1);
        self.head(last).squeeze_dim(1)
    }

    fn head(&self, hidden: Tensor<3>) -> Tensor<3> {
        match &self.head {
            Some(head) => linear(head, hidden),
            None => {
                // As a matrix: Burn copies a transposed weight to give it a third dimension.
                let [batch, length, dim] = hidden.dims();
                let hidden = hidden.reshape([batch * length, dim]);
                let logits = hidden.matmul(self.embedding.weight.val().transpose());
                let [_, classes] = logits.dims();
                logits.reshape([batch, length, classes])
            }
        }
    }

    /// Returns the states before the head. Shapes: `[batch, length]`, `[batch, length, hidden]`.
    fn hidden(&self, tokens: Tensor<2, Int>, packed: Option<Packed>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let device = tokens.device();
        let [cos, sin] = match &packed {
            Some(packed) => self.rope.table(packed.positions(), packed.rows(), &device),
            None => self.rope.table(&Vec::from_iter(0..length), 1, &device),
        };
        let apart = packed.map(|packed| packed.apart(&device));
        let mut x = embedding(&self.embedding, tokens);
        for (layer, window) in self.layers.iter().zip(&self.windows) {
            let window = *window;
            let run = move |layer: &Layer, (x, cos, sin, apart)| {
                layer.forward(x, [cos, sin], apart, window)
            };
            let input = (x, cos.clone(), sin.clone(), apart.clone());
            x = match self.recompute {
                true => gradient_checkpointing(layer, input, run),
                false => run(layer, input),
            };
        }
        rms_norm(&self.norm, x)
    }
}

impl Layer {
    fn forward(
        &self,
        x: Tensor<3>,
        rotation: [Tensor<4>; 2],
        apart: Option<Tensor<4, Bool>>,
        window: Option<usize>,
    ) -> Tensor<3> {
        let normed = rms_norm(&self.norm_1, x.clone());
        let x = x + self.attention.forward(normed, rotation, apart, window);
        let normed = rms_norm(&self.norm_2, x.clone());
        x + self.mlp.forward(normed)
    }
}

impl Mlp {
    fn init(config: &DecoderConfig, device: &Device) -> Self {
        let bias = config.mlp_bias;
        let swiglu = SwiGluConfig::new(config.hidden, config.intermediate).with_bias(bias);
        let output = LinearConfig::new(config.intermediate, config.hidden).with_bias(bias);
        Self {
            swiglu: swiglu.init(device),
            output: output.init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(&self.output, swiglu(&self.swiglu, x))
    }
}
