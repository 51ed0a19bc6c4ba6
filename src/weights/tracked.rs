//! The parameters of a block that are trained: those in fused form, and those that stay ordinary leaves.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};

use super::handle::{carries_handle, is_attached};
use crate::parameters::{AnyParam, list, map_params};
use crate::tap::lift;

/// Whether `module`, or a part of it, is in fused form, and not for inference.
pub(crate) fn is_in_training<M: Module>(module: &M) -> bool {
    let parameters = list(module);
    let mut export_in_place = parameters.iter().filter(|parameter| is_attached(parameter));
    export_in_place.any(|parameter| parameter.param.value().is_autodiff())
}

/// The tracked values of `module`, which is in fused form, that are at no home, each with its place among the
/// float parameters: those of parameters that stay ordinary leaves, and what the user's code has put in the
/// place of a parameter.
pub(crate) fn tracked_outside_of_masters<M: Module>(module: &M) -> Vec<(usize, TrackedTensor)> {
    let parameters = list(module).into_iter().enumerate();
    let tracked_outside_of_masters = parameters.filter(|(_, parameter)| !carries_handle(parameter));
    let values =
        tracked_outside_of_masters.map(|(place, parameter)| (place, parameter.param.value()));
    let tracked = values.filter(|(_, value)| value.is_tracked());
    let found = tracked.map(|(place, value)| {
        let what =
            || format!("parameter {place} (counted from 0), which is computed outside of it");
        (place, TrackedTensor::new(value.untyped(), what))
    });
    found.collect()
}

/// What a block is given and may not use.
pub(crate) struct Unused {
    /// What it is to the block.
    pub(crate) what: String,
    /// Makes its gradient then.
    pub(crate) zeros: Box<dyn FnOnce() -> DispatchTensor + Send>,
}

/// A tracked tensor that a block computes with.
pub(crate) struct TrackedTensor {
    pub(crate) tensor: DispatchTensor,
    pub(crate) device: Device,
    /// What its gradient is if the block does not use it. A leaf has none then, like in stock, but Burn's
    /// backward steps need one for each tensor that they have computed.
    pub(crate) unused: Option<Unused>,
}

impl TrackedTensor {
    /// `what` says what it is to the block. The rank in the type of `tensor` doesn't matter.
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>, what: impl FnOnce() -> String) -> Self {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let device = tensor.device();
        let inner = device.clone().inner();
        let zeros = move || Dispatch::float_zeros(shape, inner.as_dispatch(), dtype.into());
        let is_leaf = tensor.is_require_grad();
        Self {
            unused: (!is_leaf).then(|| Unused {
                what: what(),
                zeros: Box::new(zeros),
            }),
            tensor: tensor.into_dispatch(),
            device,
        }
    }
}

/// `module` with the parameters at these places as leaves of a graph of their own, and what finds the
/// gradient of each.
pub(crate) fn with_own_leaves<M: Module>(module: M, places: &[usize]) -> (M, Vec<OwnLeaf>) {
    renewed(module, places, true)
}

/// Finds the gradient of a leaf.
pub(crate) type OwnLeaf = Box<dyn FnOnce(&Gradients) -> Option<DispatchTensor>>;

/// `module` with the parameters at these places as constants.
pub(crate) fn with_constants<M: Module>(module: M, places: &[usize]) -> M {
    renewed(module, places, false).0
}

fn renewed<M: Module>(module: M, places: &[usize], tracked: bool) -> (M, Vec<OwnLeaf>) {
    let mut leaves = Vec::new();
    if places.is_empty() {
        return (module, leaves);
    }
    let mut place = 0;
    let is_at_place = |_: &dyn AnyParam| {
        place += 1;
        places.contains(&(place - 1))
    };
    let module = map_params(module, is_at_place, |_, value| {
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let mut value = lift(value.untyped().inner(), strategy);
        if tracked {
            value = value.require_grad();
            leaves.push(own_leaf(value.clone()));
        }
        value.into()
    });
    (module, leaves)
}

/// Finds the gradient of `leaf`, which has none where nothing depends on it.
pub(crate) fn own_leaf<const D: usize>(leaf: Tensor<D>) -> OwnLeaf {
    Box::new(move |gradients| leaf.grad(gradients).map(Tensor::into_dispatch))
}
