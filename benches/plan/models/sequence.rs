//! Sequences of vectors or tokens.

use backburn::{LinearCrossEntropyLossConfig, gradient_checkpointing};
use burn::module::{Initializer, Module};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{
    Embedding, EmbeddingConfig, Gru, GruConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    Lstm, LstmConfig,
};
use burn::tensor::{Device, Tensor};

use super::{Kind, Residual, input, tokens};

/// Two recurrent layers, each a block.
#[derive(Module, Debug)]
pub struct Recurrent {
    layers: Vec<Lstm>,
}

impl Kind for Recurrent {
    const NAME: &'static str = "LSTM";
    const BATCH: usize = 16;

    fn init(device: &Device) -> Self {
        let layer = |_| LstmConfig::new(64, 64, true).init(device);
        Self {
            layers: (0..2).map(layer).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let like = self.layers[0].input_gate.input_transform.weight.val();
        let x = input([items, 24, 64], &like);
        let run = |layer: &Lstm, x| layer.forward(x, None).0;
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gradient_checkpointing(layer, x, run));
        x.powi_scalar(2).mean()
    }
}

/// A recurrent layer, and an attention layer over its output, each a block.
#[derive(Module, Debug)]
pub struct Attentive {
    recurrent: Gru,
    attention: MultiHeadAttention,
    head: Linear,
}

impl Kind for Attentive {
    const NAME: &'static str = "GRU with attention";
    const BATCH: usize = 16;

    fn init(device: &Device) -> Self {
        Self {
            recurrent: GruConfig::new(64, 96, true).init(device),
            attention: MultiHeadAttentionConfig::new(96, 4)
                .with_dropout(0.0)
                .init(device),
            head: LinearConfig::new(96, 64).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 24, 64], &self.head.weight.val());
        let run = |layer: &Gru, x| layer.forward(x, None);
        let x = gradient_checkpointing(&self.recurrent, x, run);
        let look = |layer: &MultiHeadAttention, x| layer.forward(MhaInput::self_attn(x)).context;
        let x = gradient_checkpointing(&self.attention, x, look);
        self.head.forward(x).powi_scalar(2).mean()
    }
}

/// A model that is almost only an embedding, whose gradient is as large as the weight.
#[derive(Module, Debug)]
pub struct Bag {
    embedding: Embedding,
    head: Linear,
}

impl Kind for Bag {
    const NAME: &'static str = "embeddings";
    const BATCH: usize = 32;

    fn init(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(10_000, 32).init(device),
            head: LinearConfig::new(32, 8).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let tokens = tokens([items, 20], 10_000, &self.head.weight.device());
        let bag = self
            .embedding
            .forward(tokens)
            .mean_dim(1)
            .squeeze_dim::<2>(1);
        self.head.forward(bag).powi_scalar(2).mean()
    }
}

/// A language model whose embedding is its head, with the loss in chunks.
#[derive(Module, Debug)]
pub struct Language {
    embedding: Embedding,
    layers: Vec<Residual>,
    norm: LayerNorm,
}

impl Kind for Language {
    const NAME: &'static str = "language, loss in chunks";
    const BATCH: usize = 16;

    fn init(device: &Device) -> Self {
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Self {
            embedding: EmbeddingConfig::new(2048, 64)
                .with_initializer(small)
                .init(device),
            layers: (0..3).map(|_| Residual::init(64, 256, device)).collect(),
            norm: LayerNormConfig::new(64).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let tokens = tokens([items, 32], 2048, &self.embedding.weight.device());
        let hidden = self.embedding.forward(tokens.clone()).flatten::<2>(0, 1);
        let run = |layer: &Residual, x| layer.forward(x);
        let layers = self.layers.iter();
        let hidden = layers.fold(hidden, |x, layer| gradient_checkpointing(layer, x, run));
        let loss = LinearCrossEntropyLossConfig::new()
            .with_chunk_size(64)
            .init();
        let targets = tokens.reshape([items * 32]);
        loss.forward(&self.embedding, self.norm.forward(hidden), targets)
    }
}
