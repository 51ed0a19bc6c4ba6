use burn::config::Config;

use super::LinearCrossEntropyLoss;

/// Reduction of the losses of single tokens, named as in PyTorch.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum LossReduction {
    /// The mean over tokens that are not padding; with weights, the weighted sum divided by the sum of the weights.
    Mean,
    /// The sum over tokens that are not padding.
    Sum,
    /// No reduction: one loss per token, zero for the tokens in `pad_tokens`.
    None,
}

/// Configuration to create a [`LinearCrossEntropyLoss`] using the [init function](LinearCrossEntropyLossConfig::init).
#[derive(Config, Debug, PartialEq)]
pub struct LinearCrossEntropyLossConfig {
    /// Reduction of the losses of single tokens.
    #[config(default = "LossReduction::Mean")]
    pub reduction: LossReduction,
    /// Number of tokens in a chunk. The backward pass of a chunk allocates up to
    /// `6 * chunk_size * classes` numbers of 4 bytes.
    #[config(default = 256)]
    pub chunk_size: usize,
    /// Targets that are ignored, in the sum and in the number of tokens. Unlike those of Burn's
    /// [`CrossEntropyLossConfig`](burn::nn::loss::CrossEntropyLossConfig), they may be outside of the vocabulary, such as PyTorch's
    /// `ignore_index` -100. Targets of an unsigned type are never negative: `u64::MAX` is an invalid class, not the padding -1.
    pub pad_tokens: Option<Vec<i64>>,
    /// Label smoothing: the fraction of each target that is distributed evenly over all classes, from 0 to 1.
    pub smoothing: Option<f32>,
    /// Bound of the absolute value of the logits, as a smooth function: `soft_cap * tanh(logits / soft_cap)`
    /// ([Gemma 2, 2024](https://arxiv.org/abs/2408.00118)).
    pub soft_cap: Option<f64>,
}

impl LinearCrossEntropyLossConfig {
    /// Initializes the loss.
    ///
    /// # Panics
    ///
    /// If `chunk_size` is zero, `smoothing` not from 0 to 1, or `soft_cap` not a positive number of f32.
    pub fn init(&self) -> LinearCrossEntropyLoss {
        assert!(
            self.chunk_size > 0,
            "`chunk_size` is 0: it must be at least 1"
        );
        if let Some(smoothing) = self.smoothing {
            assert!(
                (0.0..=1.0).contains(&smoothing),
                "`smoothing` is {smoothing}: it must be from 0 to 1"
            );
        }
        if let Some(cap) = self.soft_cap {
            assert!(
                cap as f32 > 0.0 && (cap as f32).is_finite(),
                "`soft_cap` is {cap}: it must be a positive number of f32"
            );
        }
        LinearCrossEntropyLoss(self.clone())
    }
}
