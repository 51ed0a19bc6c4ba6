use super::config::{LossScalingConfig, Overflow};
use crate::policy::state::{LossScale, PolicyState};

/// The scale of the loss over the steps.
#[derive(Clone, Debug)]
pub(crate) struct LossScaler {
    config: LossScalingConfig,
    state: PolicyState,
}

/// A scale that halved to this finds gradients that are not finite without its doing.
const SMALLEST: f64 = 1.0 / 65536.0;

impl LossScaler {
    /// A scaler that keeps its scale in `state`.
    pub(crate) fn new(config: LossScalingConfig, state: PolicyState) -> Self {
        Self { config, state }
    }

    /// The same scaler with its scale in another `state`.
    pub(crate) fn with_state(&self, state: PolicyState) -> Self {
        let config = self.config;
        Self { config, state }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.current().scale
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.config.overflow
    }

    /// Whether a smaller scale can help against an overflow.
    pub(crate) fn can_back_off(&self) -> bool {
        self.config.growth_interval.is_none() || self.scale() > SMALLEST
    }

    /// Adapts the scale to a step.
    pub(crate) fn adapt(&self, overflowed: bool) {
        let Some(interval) = self.config.growth_interval else {
            return;
        };
        let LossScale { scale, good_steps } = self.current();
        let (scale, good_steps) = match good_steps + 1 {
            _ if overflowed => (scale / 2.0, 0),
            steps if steps >= interval => (scale * 2.0, 0),
            steps => (scale, steps),
        };
        let scale = LossScale { scale, good_steps };
        self.state.set_loss_scale(Some(scale));
    }

    fn current(&self) -> LossScale {
        self.state.loss_scale().unwrap_or_else(|| self.initial())
    }

    /// The scale of the first step.
    pub(in crate::policy) fn initial(&self) -> LossScale {
        LossScale {
            scale: self.config.initial_scale,
            good_steps: 0,
        }
    }
}
