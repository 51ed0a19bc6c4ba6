use std::error::Error;
use std::sync::Arc;

use backburn_base::{AnyTensor, with_dims};
use burn::module::{ParamGroup, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor};

use crate::error::FusedError;

/// A hook that receives each complete gradient before the update, as PyTorch's
/// [`register_post_accumulate_grad_hook`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html)
/// does. The gradient is released afterwards.
///
/// A hook is called once for each parameter and update. The gradient is summed over micro-batches and
/// devices, divided by the loss scale, and clipped by the global norm. Burn's own clipping of single
/// parameters is applied after the hook. With
/// [accumulation in the optimizer state](crate::FusedOptimizer::accumulating_in_state) every
/// micro-batch is an update. An update that only ends a group of micro-batches calls no hook.
///
/// ```
/// use backburn::{FusedOptimizer, GradientFlow, GradientHook, HookedParameter};
/// use burn::module::ParamGroup;
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
/// use burn::tensor::Tensor;
///
/// /// Gradient centralization: subtracts the mean over the first dimension.
/// struct Centralize;
///
/// impl GradientHook for Centralize {
///     fn call<const D: usize>(
///         &self,
///         _parameter: HookedParameter<'_, D>,
///         gradient: Tensor<D>,
///     ) -> GradientFlow<D> {
///         let mean = gradient.clone().mean_dim(0);
///         GradientFlow::Continue(gradient - mean)
///     }
/// }
///
/// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
/// let fused = FusedOptimizer::new(model, SgdConfig::new().init())?
///     .with_hook(ParamGroup::from_predicate("weight"), Centralize);
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// If updates or weights are offloaded to [host memory](crate::Offload), the hook runs on a worker thread: one
/// gradient after the other, in the order of arrival.
pub trait GradientHook: Send + Sync + 'static {
    /// Decides how `gradient` is used. It has the shape, dtype and device of the parameter. Neither is under autodiff.
    ///
    /// The model must not be read here: its autodiff graph is locked.
    fn call<const D: usize>(
        &self,
        parameter: HookedParameter<'_, D>,
        gradient: Tensor<D>,
    ) -> GradientFlow<D>;
}

/// The parameter that a [`GradientHook`] is called for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HookedParameter<'a, const D: usize> {
    /// Path in the module: names joined by dots.
    pub path: &'a str,
    /// Burn's id.
    pub id: ParamId,
    /// The value before the update, without autodiff. A clone that is kept makes the update copy the
    /// parameter.
    pub value: &'a Tensor<D>,
}

/// The decision of a [`GradientHook`] about a gradient.
// A CubeCL tensor without `fusion` is large, but only one at a time is moved.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum GradientFlow<const D: usize> {
    /// The update uses this gradient, of the same shape, dtype and device.
    Continue(Tensor<D>),
    /// The parameter and its optimizer state are unchanged in this step. Gradients that were accumulated for it in the buffer are
    /// dropped.
    Veto,
    /// The step fails with [`FusedError::StoppedByHook`], which names the parameter and this reason, or with the reason itself if
    /// it is a [`FusedError`]:
    /// `GradientFlow::Stop("the gradient is too large".into())`. The parameter is unchanged, and so are those whose
    /// gradient has not arrived; the others have been updated.
    Stop(Box<dyn Error + Send + Sync>),
}

/// A hook for parameters of any shape.
pub(crate) trait AnyHook: Send + Sync {
    /// Returns the gradient for the update; `None` if the hook vetoes it.
    fn call_any(
        &self,
        path: &str,
        id: ParamId,
        value: &AnyTensor,
        gradient: AnyTensor,
    ) -> Result<Option<AnyTensor>, FusedError>;
}

impl<H: GradientHook> AnyHook for H {
    fn call_any(
        &self,
        path: &str,
        id: ParamId,
        value: &AnyTensor,
        gradient: AnyTensor,
    ) -> Result<Option<AnyTensor>, FusedError> {
        let expected = Form::of(&gradient);
        let flow = with_dims!(value.shape().num_dims(), D => {
            let value = &value.clone().of_dims::<D>();
            match self.call(HookedParameter { path, id, value }, gradient.of_dims()) {
                GradientFlow::Continue(gradient) => Ok(Some(AnyTensor::from(gradient))),
                GradientFlow::Veto => Ok(None),
                GradientFlow::Stop(reason) => Err(stopped(path, reason)),
            }
        });
        match flow {
            Ok(Some(returned)) if Form::of(&returned) != expected => {
                Err(FusedError::HookedGradient {
                    path: path.to_string(),
                    expected: format!("{expected:?}"),
                    found: format!("{:?}", Form::of(&returned)),
                })
            }
            flow => flow,
        }
    }
}

/// Returns the error of a step that a hook stops. The hooks of this crate have errors of their own.
fn stopped(path: &str, reason: Box<dyn Error + Send + Sync>) -> FusedError {
    match reason.downcast() {
        Ok(error) => *error,
        Err(reason) => FusedError::StoppedByHook {
            path: path.to_string(),
            reason: reason.to_string(),
        },
    }
}

/// The properties of a gradient that a hook must not change.
#[derive(Debug, PartialEq)]
struct Form {
    shape: Shape,
    dtype: DType,
    device: Device,
    autodiff: bool,
}

impl Form {
    fn of(gradient: &AnyTensor) -> Self {
        Self {
            shape: gradient.shape(),
            dtype: gradient.dtype(),
            device: gradient.device(),
            autodiff: gradient.is_autodiff(),
        }
    }
}

/// A chain of hooks, each for its parameter group.
#[derive(Clone, Default)]
pub(crate) struct Hooks(pub(crate) Vec<(ParamGroup, Arc<dyn AnyHook>)>);

impl Hooks {
    /// Returns the gradient after all hooks; `None` if one of them vetoed it.
    pub(crate) fn call(
        &self,
        path: &str,
        id: ParamId,
        value: &AnyTensor,
        mut gradient: AnyTensor,
    ) -> Result<Option<AnyTensor>, FusedError> {
        for (group, hook) in &self.0 {
            if group.matches(&id, Some(path)) {
                match hook.call_any(path, id, value, gradient)? {
                    Some(continued) => gradient = continued,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(gradient))
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({})", self.0.len())
    }
}
