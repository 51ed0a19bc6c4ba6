use burn::config::Config;

use super::LinearCrossEntropyLoss;

/// Reduction of the losses of single tokens, named as in PyTorch.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum LossReduction {
    /// The mean over the tokens that count; with weights, the weighted sum divided by the sum of their weights.
    Mean,
    /// The sum over the tokens that count.
    Sum,
    /// No reduction: one loss for each token, zero for the tokens in `pad_tokens`.
    None,
}

/// Configuration to create a [`LinearCrossEntropyLoss`] using the [init function](LinearCrossEntropyLossConfig::init).
#[derive(Config, Debug, PartialEq)]
pub struct LinearCrossEntropyLossConfig {
    /// Reduction of the losses of single tokens.
    #[config(default = "LossReduction::Mean")]
    pub reduction: LossReduction,
    /// Number of tokens in a chunk, whose logits are computed at once. The backward pass allocates up to
    /// `6 * chunk_size * classes` numbers of 4 bytes.
    #[config(default = 256)]
    pub chunk_size: usize,
    /// Targets that count for nothing, neither in the sum nor in the number of tokens. Unlike those of Burn's
    /// [`CrossEntropyLossConfig`](burn::nn::loss::CrossEntropyLossConfig), they may lie outside of the vocabulary: PyTorch's
    /// `ignore_index` is -100. Targets of a type without a sign are never negative: `u64::MAX` is not the padding -1, but no
    /// class, and refused.
    pub pad_tokens: Option<Vec<i64>>,
    /// Label smoothing: the share of every target that is spread evenly over all classes, from 0 to 1.
    pub smoothing: Option<f32>,
    /// Keeps logits between plus and minus this number, smoothly: `soft_cap * tanh(logits / soft_cap)`
    /// ([Gemma 2, 2024](https://arxiv.org/abs/2408.00118)).
    pub soft_cap: Option<f64>,
}

impl LinearCrossEntropyLossConfig {
    /// Initializes the loss.
    ///
    /// # Panics
    ///
    /// If `chunk_size` is zero, `smoothing` not from 0 to 1, or `soft_cap` not a positive number.
    pub fn init(&self) -> LinearCrossEntropyLoss {
        assert!(
            self.chunk_size > 0,
            "`chunk_size` is 0: there must be at least one token at once"
        );
        if let Some(smoothing) = self.smoothing {
            assert!(
                (0.0..=1.0).contains(&smoothing),
                "`smoothing` is {smoothing}: it is a share from 0 to 1"
            );
        }
        if let Some(cap) = self.soft_cap {
            assert!(
                cap > 0.0 && cap.is_finite(),
                "`soft_cap` is {cap}: it must be a positive number"
            );
        }
        LinearCrossEntropyLoss(self.clone())
    }
}
