use burn::tensor::{DType, FloatDType, Tensor};

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::norm::widened;

/// Multiplies every gradient: clips it, frees it from the loss scale, or both at once.
///
/// Half types are multiplied in f32: a factor may be too small for f16.
#[derive(Debug)]
pub(crate) struct Scale(pub(crate) f64);

impl GradientHook for Scale {
    fn call<const D: usize>(
        &self,
        _parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        let dtype = gradient.dtype();
        GradientFlow::Continue(match dtype {
            DType::F16 | DType::BF16 => {
                let wide = widened(&gradient).mul_scalar(self.0);
                wide.cast(FloatDType::from(dtype))
            }
            _ => gradient.mul_scalar(self.0),
        })
    }
}
