use std::any::Any;
use std::sync::Arc;

use burn::module::{ParamGroup, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor};

use crate::error::FusedError;

/// A look at every finished gradient on its way to the update: PyTorch's
/// [`register_post_accumulate_grad_hook`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html),
/// with the gradient released afterwards.
///
/// A hook is called once for each parameter and update, with the gradient that the optimizer is
/// about to use: summed up, free of the loss scale, clipped by the global norm. Burn's own clipping
/// of single parameters comes after it. With
/// [accumulation in the optimizer state](crate::FusedOptimizer::accumulating_in_state) every
/// micro-batch is an update.
///
/// ```
/// use backburn::{FusedOptimizer, GradientFlow, GradientHook, HookedParameter};
/// use burn::module::ParamGroup;
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
/// use burn::tensor::Tensor;
///
/// /// Gradient centralization: the mean over the first dimension is taken off.
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
/// let fused = FusedOptimizer::new(model, SgdConfig::new().init())
///     .with_hook(ParamGroup::from_predicate("weight"), Centralize);
/// ```
///
/// Where updates or weights wait in [host memory](crate::Offload), it is called on another thread than that of the
/// step: one gradient after the other, in the order in which they arrive.
pub trait GradientHook: Send + Sync + 'static {
    /// Decides what becomes of `gradient`, which has the shape, dtype and device of the parameter
    /// and, like it, no autodiff.
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
    /// Path in the module, its names joined by dots.
    pub path: &'a str,
    /// Burn's id.
    pub id: ParamId,
    /// The value before the update, without autodiff. A clone that is kept makes the update copy the
    /// parameter.
    pub value: &'a Tensor<D>,
}

/// What becomes of a gradient, as a [`GradientHook`] decides.
// A tensor of CubeCL's without `fusion` is large; one at a time is moved.
#[allow(clippy::large_enum_variant)] // There is one at a time.
#[derive(Clone, Debug)]
pub enum GradientFlow<const D: usize> {
    /// The update uses this gradient, of the same shape, dtype and device.
    Continue(Tensor<D>),
    /// The parameter and the state of its optimizer stay as they are in this step.
    Veto,
    /// The step ends with this error. The parameter stays as it is, and so do those whose gradient
    /// has not arrived; the others have been updated.
    Stop(FusedError),
}

/// A hook, whatever the rank of the parameter.
pub(crate) trait AnyHook: Send + Sync {
    /// `value` is a `Tensor<D>`, `gradient` an `Option<Tensor<D>>`: the hook takes the gradient out,
    /// and puts one in if the update is to go on.
    fn call_any(
        &self,
        path: &str,
        id: ParamId,
        value: &dyn Any,
        gradient: &mut dyn Any,
    ) -> Result<(), FusedError>;
}

impl<H: GradientHook> AnyHook for H {
    fn call_any(
        &self,
        path: &str,
        id: ParamId,
        value: &dyn Any,
        gradient: &mut dyn Any,
    ) -> Result<(), FusedError> {
        macro_rules! call_with_rank {
            ($($rank:literal)*) => {
                $(if let Some(value) = value.downcast_ref::<Tensor<$rank>>()
                    && let Some(gradient) = gradient.downcast_mut::<Option<Tensor<$rank>>>()
                {
                    return call(self, HookedParameter { path, id, value }, gradient);
                })*
            };
        }
        // The ranks of Burn's optimizers.
        call_with_rank!(0 1 2 3 4 5 6 7 8);
        unreachable!("the optimizer takes no parameter of a higher rank")
    }
}

fn call<H: GradientHook, const D: usize>(
    hook: &H,
    parameter: HookedParameter<'_, D>,
    gradient: &mut Option<Tensor<D>>,
) -> Result<(), FusedError> {
    let Some(given) = gradient.take() else {
        return Ok(());
    };
    let expected = Form::of(&given);
    match hook.call(parameter, given) {
        GradientFlow::Continue(returned) if Form::of(&returned) == expected => {
            *gradient = Some(returned);
            Ok(())
        }
        GradientFlow::Continue(returned) => Err(FusedError::HookedGradient {
            path: parameter.path.to_string(),
            expected: format!("{expected:?}"),
            found: format!("{:?}", Form::of(&returned)),
        }),
        GradientFlow::Veto => Ok(()),
        GradientFlow::Stop(error) => Err(error),
    }
}

/// What a hook must not change.
#[derive(Debug, PartialEq)]
struct Form {
    shape: Shape,
    dtype: DType,
    device: Device,
    autodiff: bool,
}

impl Form {
    fn of<const D: usize>(gradient: &Tensor<D>) -> Self {
        Self {
            shape: gradient.shape(),
            dtype: gradient.dtype(),
            device: gradient.device(),
            autodiff: gradient.is_autodiff(),
        }
    }
}

/// Hooks one after the other, each for its parameter group.
#[derive(Clone, Default)]
pub(crate) struct Hooks(pub(super) Vec<(ParamGroup, Arc<dyn AnyHook>)>);

impl Hooks {
    pub(crate) fn push(&mut self, group: ParamGroup, hook: Arc<dyn AnyHook>) {
        self.0.push((group, hook));
    }

    /// The gradient after all hooks; none if one of them vetoed.
    pub(crate) fn call<const D: usize>(
        &self,
        path: &str,
        id: ParamId,
        value: &Tensor<D>,
        gradient: Tensor<D>,
    ) -> Result<Option<Tensor<D>>, FusedError> {
        let mut gradient = Some(gradient);
        for (group, hook) in &self.0 {
            if gradient.is_some() && group.matches(&id, Some(path)) {
                hook.call_any(path, id, value, &mut gradient)?;
            }
        }
        Ok(gradient)
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({})", self.0.len())
    }
}
