use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use parking_lot::Mutex;

use super::config::{LossScalingConfig, Overflow};
use super::keeper::Keeper;
use crate::policy::Update;

/// The scale of the loss over the steps.
#[derive(Clone, Debug)]
pub(crate) struct LossScaler {
    config: LossScalingConfig,
    state: Arc<Mutex<ScaleState>>,
}

/// What a record keeps of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScaleState {
    pub(super) scale: f64,
    /// Steps without an overflow since the scale last changed.
    pub(super) good_steps: usize,
}

/// A scale that halved to this finds gradients that are not finite without its doing.
const SMALLEST: f64 = 1.0 / 65536.0;

impl LossScaler {
    pub(crate) fn new(config: LossScalingConfig) -> Self {
        let state = ScaleState {
            scale: config.initial_scale,
            good_steps: 0,
        };
        Self {
            config,
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.state.lock().scale
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
        let mut state = self.state.lock();
        if overflowed {
            state.scale /= 2.0;
            state.good_steps = 0;
            return;
        }
        state.good_steps += 1;
        if state.good_steps >= interval {
            state.scale *= 2.0;
            state.good_steps = 0;
        }
    }

    /// Gives the scale a place among the states of the optimizer, which go into its record.
    pub(crate) fn join(&self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        Keeper::new(self.state.clone()).join(optimizer)
    }

    /// Writes the scale into the optimizer.
    pub(crate) fn save(&self, update: &mut Update, device: &Device) {
        Keeper::touch(&mut update.optimizer, device, Keeper::SAVE);
    }

    /// Takes the scale that the optimizer holds, if it does.
    pub(crate) fn restore(&self, update: &mut Update, device: &Device) {
        Keeper::touch(&mut update.optimizer, device, Keeper::RESTORE);
    }
}
