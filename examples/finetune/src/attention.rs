//! Attention with grouped heads and rotary positions.

use backburn_nn::{AttentionOptions, attention, linear, rms_norm};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::prelude::*;

use crate::config::DecoderConfig;
use crate::rope::rotate;

/// Causal attention.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    key_value_heads: usize,
}

impl Attention {
    pub fn init(config: &DecoderConfig, device: &Device) -> Self {
        let (all, few) = (
            config.heads * config.head_dim,
            config.key_value_heads * config.head_dim,
        );
        let layer = |from, to, bias| LinearConfig::new(from, to).with_bias(bias).init(device);
        let norm = || {
            let norm = RmsNormConfig::new(config.head_dim).with_epsilon(config.epsilon);
            config.query_key_norm.then(|| norm.init(device))
        };
        Self {
            query: layer(config.hidden, all, config.query_key_value_bias),
            key: layer(config.hidden, few, config.query_key_value_bias),
            value: layer(config.hidden, few, config.query_key_value_bias),
            output: layer(all, config.hidden, config.output_bias),
            query_norm: norm(),
            key_norm: norm(),
            heads: config.heads,
            key_value_heads: config.key_value_heads,
        }
    }

    /// # Shapes
    ///
    /// - x, output: `[batch, length, hidden]`
    /// - rotation (cosine and sine): `[1 or batch, 1, length, head_dim / 2]`
    /// - apart: `[batch, 1, length, length]`, `true` where a token (row) and another (column) are of different documents
    pub fn forward(
        &self,
        x: Tensor<3>,
        rotation: [Tensor<4>; 2],
        apart: Option<Tensor<4, Bool>>,
        window: Option<usize>,
    ) -> Tensor<3> {
        let [batch, length, _] = x.dims();
        let normed = |heads, norm: &Option<RmsNorm>| match norm {
            Some(norm) => rms_norm(norm, heads),
            None => heads,
        };
        let query = normed(
            split(linear(&self.query, x.clone()), self.heads),
            &self.query_norm,
        );
        let key = linear(&self.key, x.clone());
        let key = normed(split(key, self.key_value_heads), &self.key_norm);
        let value = split(linear(&self.value, x), self.key_value_heads);
        let query = rotate(query, rotation.clone());
        let key = rotate(key, rotation);
        let options = AttentionOptions {
            is_causal: true,
            window,
            ..Default::default()
        };
        let mixed = attention(query, key, value, apart, options);
        let mixed = mixed
            .swap_dims(1, 2)
            .reshape([batch as i32, length as i32, -1]);
        linear(&self.output, mixed)
    }
}

/// Splits `[batch, length, heads * head_dim]` into `[batch, heads, length, head_dim]`.
fn split(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, dim] = x.dims();
    let x = x.reshape([batch, length, heads, dim / heads]);
    x.swap_dims(1, 2)
}
