use burn::config::Config;

use crate::error::FusedError;

/// Scaling of the loss ([Micikevicius et al., 2017](https://arxiv.org/abs/1710.03740)), for
/// gradients that are too small for f16.
///
/// The loss is multiplied by the scale before the backward pass, and every gradient is divided by it
/// before it is clipped, shown to hooks or used. The scale is *dynamic*: it doubles after
/// `growth_interval` steps in a row without an overflow, and halves after one with. It is *static*
/// without an interval:
///
/// ```
/// use backburn::LossScalingConfig;
///
/// let dynamic = LossScalingConfig::new(); // PyTorch's defaults
/// let fixed = LossScalingConfig::new().with_initial_scale(1024.0).with_growth_interval(None);
/// ```
///
/// Powers of two cost no precision. A gradient is divided in its own dtype: with parameters in f32 that
/// the model casts to f16, it is an f32. Where the parameters themselves are f16, what was too small
/// for f16 without the scale is so again after the division.
#[derive(Config, Copy, Debug, PartialEq)]
pub struct LossScalingConfig {
    /// The scale of the first step.
    #[config(default = 65536.0)]
    pub initial_scale: f64,
    /// The number of good steps in a row after which the scale doubles; none for a static scale,
    /// which does not halve either.
    #[config(default = "Some(2000)")]
    pub growth_interval: Option<usize>,
    /// What becomes of a step whose gradients overflow.
    #[config(default = "Overflow::SkipStep")]
    pub overflow: Overflow,
}

/// What becomes of a step whose gradients overflow (one of them is infinite or not a number), for a [`LossScalingConfig`].
#[derive(Config, Copy, Debug, PartialEq)]
pub enum Overflow {
    /// Nothing is updated, as with PyTorch's `GradScaler`. Overflow is known when the last gradient is
    /// finished, so forward and backward run twice, as with
    /// [exact clipping](crate::GlobalNormClippingConfig::Exact): the first time every gradient is measured
    /// and released.
    SkipStep,
    /// One pass: parameters whose own gradient is not finite stay as they are, the others are
    /// updated. An approximation; each gradient is waited for, which costs time on a GPU.
    SkipParameter,
}

impl LossScalingConfig {
    pub(crate) fn check(self) -> Result<(), FusedError> {
        let scale = self.initial_scale;
        if !scale.is_finite() || scale <= 0.0 {
            return Err(FusedError::LossScale { scale });
        }
        if self.growth_interval == Some(0) {
            return Err(FusedError::GrowthInterval);
        }
        Ok(())
    }
}
