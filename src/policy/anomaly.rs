use burn::tensor::Tensor;

use super::hook::{GradientFlow, GradientHook, HookedParameter};
use super::measure::is_finite;
use crate::error::FusedError;

/// A hook that stops the step at the first parameter whose gradient is not finite.
///
/// The error names the parameter ([`FusedError::GradientNotFinite`]). The parameter is unchanged, and so are those whose
/// gradient has not arrived. The check waits for every gradient, which costs time on a GPU.
///
/// ```
/// use backburn::{AnomalyCheck, FusedOptimizer};
/// use burn::module::ParamGroup;
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
/// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
/// let fused = FusedOptimizer::new(model, SgdConfig::new().init())?
///     .with_hook(ParamGroup::all(), AnomalyCheck);
/// # Ok::<(), backburn::FusedError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AnomalyCheck;

impl GradientHook for AnomalyCheck {
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D> {
        match is_finite(&gradient) {
            true => GradientFlow::Continue(gradient),
            false => {
                let path = parameter.path.to_string();
                GradientFlow::Stop(FusedError::GradientNotFinite { path }.into())
            }
        }
    }
}
