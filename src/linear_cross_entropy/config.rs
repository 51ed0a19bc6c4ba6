use burn::config::Config;

use super::LinearCrossEntropyLoss;

/// What [`LinearCrossEntropyLoss`] goes over, piece by piece.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum LossDirection {
    /// Chunks of tokens, each with all classes. The value has the order of sums that Burn's loss has; the gradient of the head is
    /// there twice, that of a chunk and the sum.
    Tokens,
    /// Tiles of classes, each with all tokens; not on devices of CubeCL, where there are chunks of tokens all the same. The gradient of
    /// the head is there once, put together from those of the tiles; it has the order of sums that it has without chunks. That of the
    /// hidden states is a sum over the tiles, in f32 at least.
    Classes,
}

/// Configuration to create a [`LinearCrossEntropyLoss`] using the [init function](LinearCrossEntropyLossConfig::init).
#[derive(Config, Debug, PartialEq)]
pub struct LinearCrossEntropyLossConfig {
    /// Which way the loss goes; without one, that which takes less memory ([`LinearCrossEntropyLoss::direction`]).
    pub direction: Option<LossDirection>,
    /// Tokens whose logits exist at once, in chunks of tokens. In the backward pass there are up to six times
    /// `chunk_size * classes` numbers of 4 bytes.
    #[config(default = 256)]
    pub chunk_size: usize,
    /// Classes whose logits exist at once, in tiles of classes. In the backward pass there are up to six times
    /// `tokens * tile_size` numbers of 4 bytes.
    #[config(default = 1024)]
    pub tile_size: usize,
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
    /// If `chunk_size` or `tile_size` is zero, `smoothing` not from 0 to 1, or `soft_cap` not a positive number.
    pub fn init(&self) -> LinearCrossEntropyLoss {
        assert!(
            self.chunk_size > 0,
            "`chunk_size` is 0: there must be at least one token at once"
        );
        assert!(
            self.tile_size > 0,
            "`tile_size` is 0: there must be at least one class at once"
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
