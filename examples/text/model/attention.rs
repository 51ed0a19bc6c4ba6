use backburn::{Whole, gradient_checkpointing_tiled};
use backburn_nn::linear;
use burn::nn::{Linear, LinearConfig, RotaryEncoding, RotaryEncodingConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;

use super::LanguageModelConfig;

impl LanguageModelConfig {
    /// Returns the rotary positions, which all layers share.
    pub(super) fn rotary(&self, device: &Device) -> RotaryEncoding {
        RotaryEncodingConfig::new(self.context, self.dim / self.heads).init(device)
    }
}

/// Attention with grouped heads ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)), rotary positions and a soft cap
/// on the scores.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    rotary: RotaryEncoding,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    key_value_heads: usize,
    #[module(skip)]
    soft_cap: f64,
}

impl Attention {
    pub fn init(config: &LanguageModelConfig, rotary: RotaryEncoding, device: &Device) -> Self {
        let of_head = config.dim / config.heads;
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self {
            query: linear(config.dim, config.dim),
            key: linear(config.dim, config.key_value_heads * of_head),
            value: linear(config.dim, config.key_value_heads * of_head),
            output: linear(config.dim, config.dim),
            rotary,
            heads: config.heads,
            key_value_heads: config.key_value_heads,
            soft_cap: config.soft_cap,
        }
    }

    /// Runs the attention for up to `tile` tokens at a time.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, length, dim]`
    /// - masked: `[length, length]`
    /// - output: `[batch, length, dim]`
    pub fn forward(&self, x: Tensor<3>, masked: Tensor<2, Bool>, tile: Option<usize>) -> Tensor<3> {
        let [batch, length, dim] = x.dims();
        let query = self.turned(split(linear(&self.query, x.clone()), self.heads));
        let key = self.turned(split(linear(&self.key, x.clone()), self.key_value_heads));
        let value = split(linear(&self.value, x), self.key_value_heads);
        let seen = Whole((self.repeated(key), self.repeated(value)));
        let input = (query, masked.unsqueeze::<4>(), seen);
        let looked = |attention: &Self, (query, masked, Whole((key, value)))| {
            attention.looked(query, masked, key, value)
        };
        let mixed = match tile {
            Some(tile) => gradient_checkpointing_tiled(self, input, 2, tile, looked),
            None => looked(self, input),
        };
        let mixed = mixed.swap_dims(1, 2).reshape([batch, length, dim]);
        linear(&self.output, mixed)
    }

    /// Computes the attention of these queries.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, heads, tokens, of_head]`
    /// - masked: `[1, 1, tokens, length]`
    /// - key, value: `[batch, heads, length, of_head]`
    /// - output: `[batch, heads, tokens, of_head]`
    fn looked(
        &self,
        query: Tensor<4>,
        masked: Tensor<4, Bool>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Tensor<4> {
        let [batch, heads, tokens, _] = query.dims();
        let [_, _, _, length] = masked.dims();
        let masked = masked.expand([batch, heads, tokens, length]);
        let options = AttentionModuleOptions {
            softcap: Some(self.soft_cap),
            ..Default::default()
        };
        attention(query, key, value, Some(masked), None, options)
    }

    /// Applies the rotary positions in f32, like the table of the rotations.
    fn turned(&self, heads: Tensor<4>) -> Tensor<4> {
        let dtype = heads.dtype();
        self.rotary.forward(heads.cast(FloatDType::F32)).cast(dtype)
    }

    /// Repeats each head of keys or values for the query heads of its group.
    fn repeated(&self, few: Tensor<4>) -> Tensor<4> {
        let [batch, few_heads, length, of_head] = few.dims();
        let group = self.heads / few_heads;
        let many = few.unsqueeze_dim::<5>(2);
        let many = many.expand([batch, few_heads, group, length, of_head]);
        many.reshape([batch, self.heads, length, of_head])
    }
}

/// Converts `[batch, length, heads * of_head]` to `[batch, heads, length, of_head]`.
fn split(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, dim] = x.dims();
    let x = x.reshape([batch, length, heads, dim / heads]);
    x.swap_dims(1, 2)
}
