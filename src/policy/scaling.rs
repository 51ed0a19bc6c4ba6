//! Loss scaling: the loss is multiplied before the backward pass, so that small gradients don't
//! vanish in f16, and the gradients are divided before the update.

use std::sync::atomic::{AtomicBool, Ordering};

use backburn_base::config_struct;
use burn::config::Config;
use burn::tensor::{DType, FloatDType, Tensor};

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::measure::is_finite;
use super::squares::widened;
use super::state::LossScale;
use crate::error::FusedError;

config_struct! {
    /// Scaling of the loss ([Micikevicius et al., 2017](https://arxiv.org/abs/1710.03740)), for
    /// gradients that are too small for f16.
    ///
    /// The loss is multiplied by the scale before the backward pass, and every gradient is divided by it before clipping, hooks
    /// and the update. A *dynamic* scale doubles after `growth_interval` successive steps without an overflow, up to 2^126, and
    /// halves after a step with one, down to 2^-16. An overflow at that scale has another cause: with `SkipStep` the step fails
    /// with [`NormNotFinite`](crate::FusedError::NormNotFinite). Without an interval the scale is *static*:
    ///
    /// ```
    /// use backburn::LossScalingConfig;
    ///
    /// let dynamic = LossScalingConfig::new(); // PyTorch's defaults
    /// let fixed = LossScalingConfig::new().with_initial_scale(1024.0).with_growth_interval(None);
    /// ```
    ///
    /// Powers of two cost no precision. The divided gradient has its own type: with f32 parameters that the model casts
    /// to f16, f32. If the parameters themselves are f16, a value that is too small for f16 without the scale is
    /// too small again after the division.
    #[derive(Copy, Debug, PartialEq)]
    pub struct LossScalingConfig {
        /// The scale of the first step, from 2^-126 to 2^126.
        pub initial_scale (with_initial_scale): f64 = 65536.0,
        /// Number of successive steps without an overflow after which the scale doubles. A micro-batch counts as a step if it is
        /// accumulated in the optimizer state. `None` for a static scale, which never halves. With `SkipStep` it skips every step with
        /// an overflow, and [`StepReport::overflowed`](crate::StepReport::overflowed) reports it.
        pub growth_interval (with_growth_interval): Option<usize> = Some(2000),
        /// The reaction to gradients that overflow.
        pub overflow (with_overflow): Overflow = Overflow::SkipStep,
    }
}

/// The reaction of a [`LossScalingConfig`] to gradients that overflow (one of them is infinite or not a number).
#[derive(Config, Copy, Debug, PartialEq)]
pub enum Overflow {
    /// Skips the whole step, as PyTorch's `GradScaler` does. If a finite gradient in f16 overflows when it is divided by a scale below 1, the step ends
    /// with [`FusedError::GradientNotFinite`], and parameters whose gradients were complete earlier are updated. The forward and backward pass run twice, as with
    /// [exact clipping](crate::GlobalNormClippingConfig::Exact): the first pass checks the gradients and releases
    /// them. With [`ExactInBuffer`](crate::GlobalNormClippingConfig::ExactInBuffer) they run once, and running statistics stay updated.
    SkipStep,
    /// One pass: parameters whose own gradient is not finite are unchanged, the others are updated. This is an
    /// approximation. It waits for each gradient, which costs time on a GPU.
    SkipParameter,
}

impl LossScalingConfig {
    /// Returns the scale of the first step.
    pub(crate) fn initial(self) -> LossScale {
        LossScale {
            scale: self.initial_scale,
            good_steps: 0,
        }
    }

    pub(crate) fn check(self) -> Result<(), FusedError> {
        let scale = self.initial_scale;
        // Gradients are multiplied by the reciprocal, in f32: both are normal numbers.
        if !(2_f64.powi(-126)..=2_f64.powi(126)).contains(&scale) {
            let reason = format!("`initial_scale` is {scale:e}, and must be from 2^-126 to 2^126");
            return Err(FusedError::Config { reason });
        }
        if self.growth_interval == Some(0) {
            let reason =
                "`growth_interval` is 0: set it to 1 or more, or to `None` for a static scale";
            return Err(FusedError::Config {
                reason: reason.to_string(),
            });
        }
        Ok(())
    }
}

/// A hook that multiplies every gradient, for clipping and unscaling.
///
/// Half types are multiplied in f32: a factor may be too small for f16.
#[derive(Debug)]
pub(super) struct Scale {
    pub(super) factor: f64,
    /// Fails the pass at a product that overflows in f16.
    pub(super) fails_on_overflow: bool,
}

impl GradientHook for Scale {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let dtype = gradient.dtype();
        let scaled = match dtype {
            DType::F16 | DType::BF16 => {
                let wide = widened(&gradient).mul_scalar(self.factor);
                drop(gradient);
                wide.cast(FloatDType::from(dtype))
            }
            _ => gradient.mul_scalar(self.factor),
        };
        if self.fails_on_overflow && dtype == DType::F16 && !is_finite(&scaled) {
            let path = parameter.path.to_string();
            return GradientFlow::Stop(FusedError::GradientNotFinite { path }.into());
        }
        GradientFlow::Continue(scaled)
    }
}

/// A hook that skips parameters whose gradient is not finite.
#[derive(Debug, Default)]
pub(super) struct SkipNotFinite {
    found: AtomicBool,
}

impl SkipNotFinite {
    /// Returns `true` if a gradient was not finite.
    pub(super) fn found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }
}

impl GradientHook for SkipNotFinite {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        if is_finite(&gradient) {
            return GradientFlow::Continue(gradient);
        }
        self.found.store(true, Ordering::Relaxed);
        GradientFlow::Veto
    }
}
