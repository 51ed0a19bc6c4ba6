use std::fmt::{Display, Formatter};

use burn::config::{Config, config_to_json};
use serde::{Deserialize, Serialize};

use crate::error::FusedError;

/// Clipping of all gradients of a step by their global norm, the L2 norm of all their elements.
///
/// If the norm is larger than the maximum, every gradient is multiplied by the *coefficient*, the maximum divided by
/// the norm ([Pascanu et al., 2013](https://arxiv.org/abs/1211.5063)). The norm is known when the last gradient is
/// complete. A fused step has already applied and released the others. There are three solutions:
///
/// ```
/// use backburn::{FusedConfig, GlobalNormClippingConfig};
///
/// let exact = FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Exact(1.0))); // with `step_repeatable`
/// let in_buffer = FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::ExactInBuffer(1.0)));
/// let lagged = FusedConfig::new().with_clipping(Some(GlobalNormClippingConfig::Lagged(5.0)));
/// ```
///
/// An infinite maximum only measures the norm for [`StepReport::gradient_norm`](crate::StepReport::gradient_norm). A
/// saved config contains it as `"inf"`, since JSON has no such number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum GlobalNormClippingConfig {
    /// Two passes: the first measures and releases each gradient, the second scales and applies it (LOMO, [Lv et al.,
    /// 2023](https://arxiv.org/abs/2306.09782)). The result is that of clipping before a stock update. The cost is a
    /// second forward and backward pass instead of the memory of the gradients.
    Exact(#[serde(with = "max_norm")] f64),
    /// One pass of the closure, whose gradients stay in the buffer of micro-batches until the norm is known. The result,
    /// including random numbers, is that of clipping before a stock update. The buffer takes the memory of the gradients,
    /// and the closure runs once. With [offload](crate::FusedConfig::offload) the gradients are in host memory, and take no
    /// device memory.
    ///
    /// A step that fails after its backward pass, or is skipped because of an overflow, also drops gradients that were
    /// [accumulated](crate::FusedOptimizer::accumulate) earlier, and keeps the running statistics of its forward pass.
    ExactInBuffer(#[serde(with = "max_norm")] f64),
    /// One pass (two with [`Overflow::SkipStep`](crate::Overflow::SkipStep)), with the coefficient of the last finite norm of an earlier step; the first step is not clipped. The only
    /// cost is to measure each gradient. With gradients that are [accumulated in the optimizer
    /// state](crate::FusedOptimizer::accumulating_in_state), each micro-batch is measured and clipped alone.
    ///
    /// Without loss scaling, a gradient that is not finite fails the step before it is applied, as with
    /// [`AnomalyCheck`](crate::AnomalyCheck). CubeCL devices report it after the update
    /// ([`FusedError::UpdatedNotFinite`]).
    Lagged(#[serde(with = "max_norm")] f64),
}

impl GlobalNormClippingConfig {
    pub(crate) fn check(self) -> Result<(), FusedError> {
        let max_norm = self.max_norm();
        match max_norm.is_nan() || max_norm <= 0.0 {
            true => Err(FusedError::Config {
                reason: format!(
                    "the norm in `GlobalNormClippingConfig` is {max_norm}, and must be positive"
                ),
            }),
            false => Ok(()),
        }
    }

    /// Returns `true` if gradients are clipped by their own norm, not by the norm of the previous step.
    pub(crate) fn is_exact(self) -> bool {
        !matches!(self, Self::Lagged(_))
    }

    /// Returns the largest norm that is not clipped.
    fn max_norm(self) -> f64 {
        match self {
            Self::Exact(max_norm) | Self::ExactInBuffer(max_norm) | Self::Lagged(max_norm) => {
                max_norm
            }
        }
    }

    /// Returns the coefficient of the gradients, if they are clipped. A norm that is not finite has none.
    pub(crate) fn coefficient(self, norm: f64) -> Option<f64> {
        let clips = norm.is_finite() && norm > self.max_norm();
        clips.then(|| self.max_norm() / norm)
    }
}

impl Config for GlobalNormClippingConfig {}

impl Display for GlobalNormClippingConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

/// The representation of a maximum norm in a file: a number, or `"inf"`.
mod max_norm {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Saved {
        Number(f64),
        Named(Infinity),
    }

    #[derive(Deserialize, Serialize)]
    enum Infinity {
        #[serde(rename = "inf")]
        Positive,
    }

    pub(super) fn serialize<S: Serializer>(norm: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let saved = match *norm == f64::INFINITY {
            true => Saved::Named(Infinity::Positive),
            false => Saved::Number(*norm),
        };
        saved.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(match Saved::deserialize(deserializer)? {
            Saved::Number(norm) => norm,
            Saved::Named(Infinity::Positive) => f64::INFINITY,
        })
    }
}
