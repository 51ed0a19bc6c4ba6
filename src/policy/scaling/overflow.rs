use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;

use crate::policy::hook::{GradientFlow, GradientHook, HookedParameter};
use crate::policy::measure::is_finite;

/// Leaves parameters alone whose gradient is not finite.
#[derive(Debug, Default)]
pub(crate) struct LeaveNotFinite {
    found: AtomicBool,
}

impl LeaveNotFinite {
    /// Whether there was one.
    pub(crate) fn found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }
}

impl GradientHook for LeaveNotFinite {
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
