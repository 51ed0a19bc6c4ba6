//! A vision transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv:2010.11929) with pre-norm blocks,
//! structured like torchvision's `vit_*_16`: same modules, same parameter count.

use backburn::gradient_checkpointing;
use backburn_nn::{AttentionOptions, attention, layer_norm, linear};
use burn::module::{Initializer, Param};
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Dropout, DropoutConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;

/// Added to the variance in norms.
const EPSILON: f64 = 1e-6;

/// The size of a vision transformer.
#[derive(Config, Debug)]
pub struct VitConfig {
    /// Height and width of the images in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels; divides `image_size`.
    pub patch_size: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of attention heads; divides `dim`.
    pub heads: usize,
    /// Hidden width of the feed-forward part of a block.
    pub mlp_dim: usize,
    /// Number of classes.
    #[config(default = 1000)]
    pub classes: usize,
    /// Color channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// Dropout probability after attention and feed-forward.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Makes each block a checkpointed block in fused training.
    #[config(default = false)]
    pub recompute_blocks: bool,
    /// Micro-batches of a planned step, by which the gradients of mean losses are divided.
    #[config(default = 1)]
    pub micro_batches: usize,
}

impl VitConfig {
    /// Returns the config for 8 x 8 gray digits: 2 x 2 patches, 16 tokens and the class token.
    pub fn digits() -> Self {
        Self::new(8, 2, 64, 4, 4, 128)
            .with_classes(10)
            .with_channels(1)
            .with_dropout(0.1)
    }

    /// Returns the config of ViT-Ti/16 for 224 x 224 images.
    pub fn vit_ti_16() -> Self {
        Self::new(224, 16, 192, 12, 3, 768)
    }

    /// Returns the config of ViT-S/16.
    pub fn vit_s_16() -> Self {
        Self::new(224, 16, 384, 12, 6, 1536)
    }

    /// Returns the config of ViT-B/16.
    pub fn vit_b_16() -> Self {
        Self::new(224, 16, 768, 12, 12, 3072)
    }

    /// Returns the config of ViT-L/16.
    pub fn vit_l_16() -> Self {
        Self::new(224, 16, 1024, 24, 16, 4096)
    }

    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> Vit {
        let patches = (self.image_size / self.patch_size).pow(2);
        let embedding = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Vit {
            patch_embedding: Conv2dConfig::new([self.channels, self.dim], [self.patch_size; 2])
                .with_stride([self.patch_size; 2])
                .init(device),
            class_token: embedding.init([1, 1, self.dim], device),
            positions: embedding.init([1, patches + 1, self.dim], device),
            dropout: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.depth).map(|_| self.init_block(device)).collect(),
            recompute_blocks: self.recompute_blocks,
            micro_batches: self.micro_batches,
            norm: self.init_norm(device),
            head: LinearConfig::new(self.dim, self.classes).init(device),
        }
    }

    pub fn init_block(&self, device: &Device) -> Block {
        Block {
            norm_1: self.init_norm(device),
            attention: MultiHeadAttentionConfig::new(self.dim, self.heads)
                .with_dropout(0.0)
                .init(device),
            norm_2: self.init_norm(device),
            expand: LinearConfig::new(self.dim, self.mlp_dim).init(device),
            contract: LinearConfig::new(self.mlp_dim, self.dim).init(device),
            gelu: Gelu::new(),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }

    fn init_norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.dim)
            .with_epsilon(EPSILON)
            .init(device)
    }
}

/// A vision transformer.
#[derive(Module, Debug)]
pub struct Vit {
    patch_embedding: Conv2d,
    class_token: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    dropout: Dropout,
    blocks: Vec<Block>,
    #[module(skip)]
    recompute_blocks: bool,
    #[module(skip)]
    pub micro_batches: usize,
    norm: LayerNorm,
    head: Linear,
}

impl Vit {
    /// Classifies images.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, channels, image_size, image_size]`
    /// - output (logits): `[batch, classes]`
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [batch, ..] = images.dims();

        // In the float type of the weights, for any type of the images.
        let dtype = self.patch_embedding.weight.val().dtype();
        let images = images.cast(FloatDType::from(dtype));
        let patches = self.patch_embedding.forward(images);
        let patches = patches.flatten::<3>(2, 3).swap_dims(1, 2);
        let [_, _, dim] = patches.dims();
        let class_token = self.class_token.val().expand([batch, 1, dim]);
        let tokens = Tensor::cat(vec![class_token, patches], 1) + self.positions.val();

        let forward = |block: &Block, x| block.forward(x);
        let tokens = self.dropout.forward(tokens);
        let tokens = self
            .blocks
            .iter()
            .fold(tokens, |x, block| match self.recompute_blocks {
                true => gradient_checkpointing(block, x, forward),
                false => forward(block, x),
            });
        let class_token = tokens.narrow(1, 0, 1).squeeze_dim(1);
        linear(&self.head, layer_norm(&self.norm, EPSILON, class_token))
    }
}

/// A pre-norm transformer block.
#[derive(Module, Debug)]
pub struct Block {
    norm_1: LayerNorm,
    pub attention: MultiHeadAttention,
    norm_2: LayerNorm,
    expand: Linear,
    contract: Linear,
    gelu: Gelu,
    dropout: Dropout,
}

impl Block {
    /// Runs the block. Shapes: `[batch, tokens, dim]` in and out.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let attended = self.attend(layer_norm(&self.norm_1, EPSILON, x.clone()));
        let x = x + self.dropout.forward(attended);

        let hidden = layer_norm(&self.norm_2, EPSILON, x.clone());
        let hidden = self.gelu.forward(linear(&self.expand, hidden));
        let hidden = linear(&self.contract, hidden);
        x + self.dropout.forward(hidden)
    }

    /// Computes [`MultiHeadAttention::forward`] for inputs of one source, without its dropout.
    pub fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, tokens, dim] = x.dims();
        let layers = &self.attention;
        let heads = |layer: &Linear| {
            let x = linear(layer, x.clone());
            let x = x.reshape([batch, tokens, layers.n_heads, layers.d_k]);
            x.swap_dims(1, 2)
        };
        let (query, key, value) = (
            heads(&layers.query),
            heads(&layers.key),
            heads(&layers.value),
        );
        let mixed = attention(query, key, value, None, AttentionOptions::default());
        let mixed = mixed.swap_dims(1, 2).reshape([batch, tokens, dim]);
        linear(&layers.output, mixed)
    }
}
