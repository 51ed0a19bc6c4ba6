use backburn_nn::{AttentionOptions, attention, linear};
use burn::nn::{Linear, LinearConfig, RotaryEncoding, RotaryEncodingConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;

use super::LanguageModelConfig;

impl LanguageModelConfig {
    /// Returns the rotary positions, which all layers share.
    pub(super) fn rotary(&self, device: &Device) -> RotaryEncoding {
        RotaryEncodingConfig::new(self.context, self.dim / self.heads).init(device)
    }
}

/// Causal attention in a window, with grouped heads ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)) and rotary positions.
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
    window: usize,
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
            window: config.window,
        }
    }

    /// Runs the attention.
    ///
    /// # Shapes
    ///
    /// - x, output: `[batch, length, dim]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, dim] = x.dims();
        let query = self.turned(split(linear(&self.query, x.clone()), self.heads));
        let key = self.turned(split(linear(&self.key, x.clone()), self.key_value_heads));
        let value = split(linear(&self.value, x), self.key_value_heads);
        let options = AttentionOptions {
            is_causal: true,
            window: Some(self.window),
            ..Default::default()
        };
        let mixed = attention(query, key, value, None, options);
        let mixed = mixed.swap_dims(1, 2).reshape([batch, length, dim]);
        linear(&self.output, mixed)
    }

    /// Applies the rotary positions in f32, like the table of the rotations.
    fn turned(&self, heads: Tensor<4>) -> Tensor<4> {
        let dtype = heads.dtype();
        self.rotary.forward(heads.cast(FloatDType::F32)).cast(dtype)
    }
}

/// Converts `[batch, length, heads * of_head]` to `[batch, heads, length, of_head]`.
fn split(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, dim] = x.dims();
    let x = x.reshape([batch, length, heads, dim / heads]);
    x.swap_dims(1, 2)
}
