use std::sync::Arc;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::Device;
use parking_lot::{Mutex, MutexGuard};

/// State that policies adapt from step to step. All handles share it, so that a record contains the live state.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyState(Arc<Mutex<AdaptiveState>>);

/// The adaptive state of all policies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptiveState {
    pub(crate) loss_scale: Option<LossScale>,
    /// The last finite global norm of the gradients.
    pub(crate) gradient_norm: Option<f64>,
}

/// The scale of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossScale {
    pub(crate) scale: f64,
    /// Steps without an overflow since the scale last changed.
    pub(super) good_steps: usize,
}

/// If the scale has been halved to this, an overflow is not caused by the scale.
const SMALLEST: f64 = 1.0 / 65536.0;
/// The scale grows no further than 2^126: gradients are multiplied by the reciprocal, and a device may round a smaller one to zero.
const LARGEST: f64 = 1.0 / f32::MIN_POSITIVE as f64;

impl LossScale {
    /// Returns `true` if a smaller scale may avoid an overflow.
    pub(crate) fn is_large(self) -> bool {
        self.scale > SMALLEST
    }

    /// Returns the scale of the next step. It halves if the gradients `overflowed` and a smaller scale may
    /// avoid this, and doubles after `interval` steps without an overflow, up to [`LARGEST`].
    pub(crate) fn after(self, interval: usize, overflowed: bool) -> Self {
        let (scale, good_steps) = match self.good_steps + 1 {
            _ if overflowed && self.is_large() => (self.scale / 2.0, 0),
            // A smaller scale would not help.
            _ if overflowed => (self.scale, 0),
            steps if steps >= interval && self.scale * 2.0 <= LARGEST => (self.scale * 2.0, 0),
            steps => (self.scale, steps),
        };
        Self { scale, good_steps }
    }
}

impl PolicyState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, AdaptiveState> {
        self.0.lock()
    }

    /// Returns to the state before the first step.
    pub(crate) fn reset(&self) {
        *self.0.lock() = AdaptiveState::default();
    }
}

impl RecordState for PolicyState {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        let adaptive = *self.0.lock();
        if let Some(LossScale { scale, good_steps }) = adaptive.loss_scale {
            sink.push_scalar(prefix, "loss_scale", scale.into());
            sink.push_scalar(prefix, "good_steps", good_steps.into());
        }
        if let Some(norm) = adaptive.gradient_norm {
            sink.push_scalar(prefix, "gradient_norm", norm.into());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, _device: &Device) -> Option<Self> {
        let mut scalar = |name| source.take_scalar(prefix, name);
        let scale = scalar("loss_scale").and_then(|scale| scale.try_into().ok());
        let good_steps = scalar("good_steps").and_then(|steps| steps.try_into().ok());
        let adaptive = AdaptiveState {
            loss_scale: scale
                .zip(good_steps)
                .map(|(scale, good_steps)| LossScale { scale, good_steps }),
            gradient_norm: scalar("gradient_norm").and_then(|norm| norm.try_into().ok()),
        };
        Some(Self(Arc::new(Mutex::new(adaptive))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_scale_stops_at_smallest_normal_reciprocal() {
        let (scale, good_steps) = (1.0, 0);
        let mut loss_scale = LossScale { scale, good_steps };
        (0..200).for_each(|_| loss_scale = loss_scale.after(1, false));
        assert_eq!((1.0 / loss_scale.scale) as f32, f32::MIN_POSITIVE);
    }
}
