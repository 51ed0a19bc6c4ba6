//! Sixteen kinds of small models, each with a loss over a number of items.

use backburn::{BaseFormat, LinearCrossEntropyLossConfig, QuantizedLora, gradient_checkpointing};
use burn::module::{Initializer, Lora, Module, ParamGroup};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};

use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu, Gru,
    GruConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig, PaddingConfig2d,
    Relu,
};
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};

/// A model whose loss can be computed for any number of items.
pub trait Kind: Module {
    const NAME: &'static str;
    /// Number of items in a step.
    const BATCH: usize;

    fn init(device: &Device) -> Self;

    fn loss(&self, items: usize) -> Tensor<1>;
}

/// Returns the same numbers in every run, in the type of `like`.
fn input<const D: usize, const E: usize>(shape: [usize; D], like: &Tensor<E>) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &like.device()).float();
    let numbers = numbers.mul_scalar(0.37).sin().reshape(shape);
    numbers.cast(FloatDType::from(like.dtype()))
}

/// Returns the same tokens in every run.
fn tokens(shape: [usize; 2], vocabulary: usize, device: &Device) -> Tensor<2, Int> {
    let count = (shape[0] * shape[1]) as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, device);
    let numbers = numbers.mul_scalar(7919).remainder_scalar(vocabulary as i64);
    numbers.reshape(shape)
}

#[derive(Module, Debug)]
pub struct Residual {
    expand: Linear,
    contract: Linear,
}

impl Residual {
    fn init(dim: usize, inside: usize, device: &Device) -> Self {
        Self {
            expand: LinearConfig::new(dim, inside).init(device),
            contract: LinearConfig::new(inside, dim).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inside = Gelu::new().forward(self.expand.forward(x.clone()));
        x + self.contract.forward(inside)
    }
}

/// Residual blocks, as checkpointed blocks.
#[derive(Module, Debug)]
pub struct Mlp {
    blocks: Vec<Residual>,
}

impl Kind for Mlp {
    const NAME: &'static str = "residual MLP";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let block = |_| Residual::init(96, 384, device);
        Self {
            blocks: (0..6).map(block).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 96], &self.blocks[0].expand.weight.val());
        let run = |block: &Residual, x| block.forward(x);
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| gradient_checkpointing(block, x, run));
        x.powi_scalar(2).mean()
    }
}

/// An MLP without gradient checkpointing, with large weights at the end.
#[derive(Module, Debug)]
pub struct Plain {
    blocks: Vec<Residual>,
    head: Linear,
}

impl Kind for Plain {
    const NAME: &'static str = "no blocks";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        let block = |_| Residual::init(64, 256, device);
        Self {
            blocks: (0..4).map(block).collect(),
            head: LinearConfig::new(64, 4096).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.head.weight.val());
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(x).tanh().powi_scalar(2).mean()
    }
}

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

#[derive(Module, Debug)]
pub struct Stage {
    conv: Conv2d,
    norm: BatchNorm,
    inner: Conv2d,
}

impl Stage {
    fn init(channels: usize, device: &Device) -> Self {
        let conv =
            Conv2dConfig::new([channels, channels], [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv: conv.init(device),
            norm: BatchNormConfig::new(channels).init(device),
            inner: conv.init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let inside = self.norm.forward(self.conv.forward(x.clone()));
        x + self.inner.forward(Relu::new().forward(inside))
    }
}

/// Residual stages of convolutions with batch normalization, each a block, and a large layer at the end.
#[derive(Module, Debug)]
pub struct Convolutional {
    stem: Conv2d,
    stages: Vec<Stage>,
    head: Linear,
}

impl Kind for Convolutional {
    const NAME: &'static str = "convolutional";
    const BATCH: usize = 8;

    fn init(device: &Device) -> Self {
        Self {
            stem: Conv2dConfig::new([3, 16], [3, 3])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            stages: (0..3).map(|_| Stage::init(16, device)).collect(),
            head: LinearConfig::new(16 * 16 * 16, 100).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 3, 32, 32], &self.stem.weight.val());
        let run = |stage: &Stage, x| stage.forward(x);
        let stages = self.stages.iter();
        let x = stages.fold(self.stem.forward(x), |x, stage| {
            gradient_checkpointing(stage, x, run)
        });
        self.head
            .forward(x.flatten::<2>(1, 3))
            .powi_scalar(2)
            .mean()
    }
}

/// A U-Net: down, and up again with skip connections.
#[derive(Module, Debug)]
pub struct UNet {
    down: Vec<Conv2d>,
    up: Vec<Conv2d>,
    last: Conv2d,
}

impl Kind for UNet {
    const NAME: &'static str = "U-net";
    const BATCH: usize = 8;

    fn init(device: &Device) -> Self {
        let conv = |from, to, stride| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            down: vec![conv(1, 16, 1), conv(16, 32, 2), conv(32, 64, 2)],
            up: vec![conv(64 + 32, 32, 1), conv(32 + 16, 16, 1)],
            last: conv(16, 1, 1),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let image = input([items, 1, 32, 32], &self.last.weight.val());
        let run = |conv: &Conv2d, x: Tensor<4>| Gelu::new().forward(conv.forward(x));
        let mut skips = Vec::new();
        let mut x = image.clone();
        for conv in &self.down {
            x = gradient_checkpointing(conv, x, run);
            skips.push(x.clone());
        }
        skips.pop();
        for conv in &self.up {
            let [_, channels, height, width] = x.dims();
            let larger = x
                .reshape([items, channels, height, 1, width, 1])
                .expand([items, channels, height, 2, width, 2])
                .reshape([items, channels, 2 * height, 2 * width]);
            let both = Tensor::cat(vec![larger, skips.pop().unwrap()], 1);
            x = gradient_checkpointing(conv, both, run);
        }
        (self.last.forward(x) - image).powi_scalar(2).mean()
    }
}

/// An autoencoder whose decoder is its encoder, transposed.
#[derive(Module, Debug)]
pub struct Tied {
    encoder: Linear,
    inside: Residual,
}

impl Kind for Tied {
    const NAME: &'static str = "tied autoencoder";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        Self {
            encoder: LinearConfig::new(784, 256).with_bias(false).init(device),
            inside: Residual::init(256, 256, device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 784], &self.encoder.weight.val());
        let code = self.encoder.forward(x.clone());
        let code =
            gradient_checkpointing(&self.inside, code, |block: &Residual, x| block.forward(x));
        let again = code.matmul(self.encoder.weight.val().transpose());
        (again - x).powi_scalar(2).mean()
    }
}

/// A variational autoencoder, which samples.
#[derive(Module, Debug)]
pub struct Variational {
    encoder: Linear,
    mean: Linear,
    deviation: Linear,
    decoder: Linear,
    output: Linear,
}

impl Kind for Variational {
    const NAME: &'static str = "VAE";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            encoder: linear(784, 256),
            mean: linear(256, 32),
            deviation: linear(256, 32),
            decoder: linear(32, 256),
            output: linear(256, 784),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 784], &self.encoder.weight.val());
        let inside = self.encoder.forward(x.clone()).tanh();
        let mean = self.mean.forward(inside.clone());
        let deviation = self.deviation.forward(inside).tanh();
        let noise = Tensor::random_like(&mean, Distribution::Normal(0.0, 1.0));
        let code = mean + deviation * noise;
        let again = self.output.forward(self.decoder.forward(code).tanh());
        (again - x).powi_scalar(2).mean()
    }
}

#[derive(Module, Debug)]
pub struct Experts {
    gate: Linear,
    experts: Vec<Residual>,
}

impl Experts {
    /// Each token goes through all experts, weighted.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let weights = burn::tensor::activation::softmax(self.gate.forward(x.clone()), 1);
        let experts = self.experts.iter().enumerate();
        let outputs = experts
            .map(|(place, expert)| expert.forward(x.clone()) * weights.clone().narrow(1, place, 1));
        outputs.reduce(|a, b| a + b).unwrap()
    }
}

/// Mixtures of experts, each a block.
#[derive(Module, Debug)]
pub struct Mixture {
    layers: Vec<Experts>,
}

impl Kind for Mixture {
    const NAME: &'static str = "mixture of experts";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let layer = |_| Experts {
            gate: LinearConfig::new(64, 4).init(device),
            experts: (0..4).map(|_| Residual::init(64, 128, device)).collect(),
        };
        Self {
            layers: (0..4).map(layer).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.layers[0].gate.weight.val());
        let run = |layer: &Experts, x| layer.forward(x);
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gradient_checkpointing(layer, x, run));
        x.powi_scalar(2).mean()
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

/// Frozen blocks with small trained matrices added to their weights.
#[derive(Module, Debug)]
pub struct Adapted {
    inner: Mlp,
}

impl Kind for Adapted {
    const NAME: &'static str = "LoRA";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let lora = Lora::new(4, 8.0).set_param_group(ParamGroup::from_predicate("weight"));
        Self {
            inner: Mlp::init(device).apply_lora(lora),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        self.inner.loss(items)
    }
}

/// Frozen blocks with quantized weights and small trained matrices.
#[derive(Module, Debug)]
pub struct InCodes {
    inner: Mlp,
}

impl Kind for InCodes {
    const NAME: &'static str = "LoRA on 4 bits";
    const BATCH: usize = 256;

    fn init(device: &Device) -> Self {
        let lora = Lora::new(4, 8.0).set_param_group(ParamGroup::from_predicate("weight"));
        let lora = QuantizedLora::new(lora, BaseFormat::Bits4);
        Self {
            inner: Mlp::init(device).apply_reparameterization(lora),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        self.inner.loss(items)
    }
}

/// A generator and a discriminator, trained at once.
#[derive(Module, Debug)]
pub struct Adversarial {
    generator: Vec<Residual>,
    judge: Vec<Residual>,
    verdict: Linear,
}

impl Kind for Adversarial {
    const NAME: &'static str = "adversarial";
    const BATCH: usize = 64;

    fn init(device: &Device) -> Self {
        let blocks = || (0..2).map(|_| Residual::init(96, 192, device)).collect();
        Self {
            generator: blocks(),
            judge: blocks(),
            verdict: LinearConfig::new(96, 1).init(device),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let run = |block: &Residual, x| block.forward(x);
        let through = |blocks: &[Residual], x: Tensor<2>| {
            let blocks = blocks.iter();
            blocks.fold(x, |x, block| gradient_checkpointing(block, x, run))
        };
        let real = input([items, 96], &self.verdict.weight.val());
        let made = through(&self.generator, real.clone().mul_scalar(0.5));
        let judged = |x| self.verdict.forward(through(&self.judge, x)).tanh();
        let (of_real, of_made) = (judged(real), judged(made));
        (of_made - of_real).powi_scalar(2).mean()
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

/// The tied autoencoder, with batch normalization of its code.
#[derive(Module, Debug)]
pub struct Normed {
    encoder: Linear,
    norm: BatchNorm,
    inside: Vec<Residual>,
}

impl Kind for Normed {
    const NAME: &'static str = "tied, batch norm";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        Self {
            encoder: LinearConfig::new(512, 192).with_bias(false).init(device),
            norm: BatchNormConfig::new(192).init(device),
            inside: (0..2).map(|_| Residual::init(192, 256, device)).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 512], &self.encoder.weight.val());
        let code = self.norm.forward(self.encoder.forward(x.clone()));
        let run = |block: &Residual, x| block.forward(x);
        let blocks = self.inside.iter();
        let code = blocks.fold(code, |x, block| gradient_checkpointing(block, x, run));
        let again = code.matmul(self.encoder.weight.val().transpose());
        (again - x).powi_scalar(2).mean()
    }
}

#[derive(Module, Debug)]
pub struct Dropped {
    inner: Residual,
    dropout: Dropout,
}

/// Many residual blocks with dropout.
#[derive(Module, Debug)]
pub struct Deep {
    blocks: Vec<Dropped>,
}

impl Kind for Deep {
    const NAME: &'static str = "deep, with dropout";
    const BATCH: usize = 128;

    fn init(device: &Device) -> Self {
        let block = |_| Dropped {
            inner: Residual::init(64, 160, device),
            dropout: DropoutConfig::new(0.1).init(),
        };
        Self {
            blocks: (0..16).map(block).collect(),
        }
    }

    fn loss(&self, items: usize) -> Tensor<1> {
        let x = input([items, 64], &self.blocks[0].inner.expand.weight.val());
        let run = |block: &Dropped, x| block.dropout.forward(block.inner.forward(x));
        let blocks = self.blocks.iter();
        let x = blocks.fold(x, |x, block| gradient_checkpointing(block, x, run));
        x.powi_scalar(2).mean()
    }
}
