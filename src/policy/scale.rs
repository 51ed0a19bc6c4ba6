use burn::tensor::Tensor;

use super::hook::{GradientFlow, GradientHook, HookedParameter};

/// Multiplies every gradient: clips it, frees it from the loss scale, or both at once.
#[derive(Debug)]
pub(crate) struct Scale(pub(crate) f64);

impl GradientHook for Scale {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        GradientFlow::Continue(gradient.mul_scalar(self.0))
    }
}
