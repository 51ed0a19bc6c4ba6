use backburn_nn::rms_norm;
use burn::nn::{RmsNorm, RmsNormConfig, RotaryEncoding};
use burn::prelude::*;

use super::LanguageModelConfig;
use super::attention::Attention;
use super::experts::Experts;

/// Attention, then experts, each with a norm and a residual connection.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    experts_norm: RmsNorm,
    experts: Experts,
}

impl Layer {
    pub fn init(config: &LanguageModelConfig, rotary: RotaryEncoding, device: &Device) -> Self {
        let norm = RmsNormConfig::new(config.dim);
        Self {
            attention_norm: norm.init(device),
            attention: Attention::init(config, rotary, device),
            experts_norm: norm.init(device),
            experts: Experts::init(config, device),
        }
    }

    /// Runs the layer. The experts compute up to `tile` tokens at a time. Returns the residual stream and the load-balancing
    /// loss.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, length, dim]`
    /// - output: `[batch, length, dim]`, `[1]`
    pub fn forward(&self, x: Tensor<3>, tile: Option<usize>) -> (Tensor<3>, Tensor<1>) {
        let normed = rms_norm(&self.attention_norm, x.clone());
        let x = x + self.attention.forward(normed);
        let [batch, length, dim] = x.dims();
        let tokens = rms_norm(&self.experts_norm, x.clone());
        let tokens = tokens.reshape([batch * length, dim]);
        let (mixed, balance) = self.experts.forward(tokens, tile);
        (x + mixed.reshape([batch, length, dim]), balance)
    }
}
