//! The tracked parameters of a block: attached ones, and ordinary leaves.

use backburn_base::{AnyParam, Parameter, lift};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};

use super::handle::{carries_handle, is_attached, parameters};
use crate::parameters::map_params;
use crate::pass::{ReadMode, Scope};
use crate::threads::lock::is_in_pool;

/// Returns `true` if `module`, or a part of it, is attached and not for inference.
pub(crate) fn is_in_training<M: Module>(module: &M) -> bool {
    let parameters = parameters(module);
    let mut attached = parameters.iter().filter(|parameter| is_attached(parameter));
    attached.any(|parameter| parameter.param.value().is_autodiff())
}

/// Returns `true` if no parameter of `module` is under autodiff; `None` if it has none. Lazy parameters stay lazy.
pub(crate) fn is_for_inference<M: Module>(module: &M) -> Option<bool> {
    let parameters = parameters(module);
    let is_autodiff = |parameter: &Parameter| parameter.param.is_autodiff();
    (!parameters.is_empty()).then(|| !parameters.iter().any(is_autodiff))
}

/// Returns `true` if `module` with these inputs belongs to a stock training, and `scope` to a step that it is not a part of: a hook
/// runs, or the thread of a rayon pool waits within the step and runs that training meanwhile.
pub(crate) fn is_in_stock_training<M: Module>(
    module: &M,
    has_tracked_input: bool,
    scope: &Scope,
) -> bool {
    let is_apart = is_in_pool() || matches!(scope.mode, ReadMode::Hook(_));
    // In a block that records nothing, the inputs that the step passes are constants.
    let has_foreign_input = has_tracked_input && !scope.records();
    is_apart
        && !is_in_training(module)
        && (has_foreign_input || !tracked_and_not_attached(module).is_empty())
}

/// Returns the tracked values of the attached `module` that no master holds, each with its index among the float
/// parameters: ordinary leaves, and tensors that the user's code has set in place of a parameter.
pub(crate) fn tracked_and_not_attached<M: Module>(module: &M) -> Vec<(usize, TrackedTensor)> {
    let parameters = parameters(module).into_iter().enumerate();
    let without_master = parameters.filter(|(_, parameter)| !carries_handle(parameter));
    let values = without_master.map(|(place, parameter)| (place, parameter.param.value()));
    let tracked = values.filter(|(_, value)| value.is_tracked());
    let found = tracked.map(|(place, value)| {
        let what =
            || format!("parameter {place} (counted from 0), which is computed outside of it");
        (place, TrackedTensor::new(value.0, what))
    });
    found.collect()
}

/// A tracked input that a block may leave unused.
pub(crate) struct Unused {
    /// Description for the log.
    pub(crate) what: String,
    /// Creates the zero gradient.
    pub(crate) zeros: Box<dyn FnOnce() -> DispatchTensor + Send>,
}

/// A tracked tensor that a block computes with.
pub(crate) struct TrackedTensor {
    pub(crate) tensor: DispatchTensor,
    pub(crate) device: Device,
    /// The gradient if the block does not use the tensor. A leaf then has no gradient, as in stock Burn. Burn's
    /// backward steps need a gradient for each computed tensor.
    pub(crate) unused: Option<Unused>,
}

impl TrackedTensor {
    /// Creates a tracked tensor described by `what`. The number of dimensions in the type of `tensor` is arbitrary.
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

/// Returns `module` with the parameters at these indices as leaves of a new graph, and a function for the gradient of
/// each.
pub(crate) fn with_own_leaves<M: Module>(module: M, places: &[usize]) -> (M, Vec<OwnLeaf>) {
    renewed(module, places, true)
}

/// A function that finds the gradient of a leaf.
pub(crate) type OwnLeaf = Box<dyn FnOnce(&Gradients) -> Option<DispatchTensor>>;

/// Returns `module` with the parameters at these indices as constants.
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
        let mut value = lift(value.0.inner(), strategy);
        if tracked {
            value = value.require_grad();
            leaves.push(own_leaf(value.clone()));
        }
        value.into()
    });
    (module, leaves)
}

/// Returns a function that finds the gradient of `leaf`; `None` if nothing depends on it.
pub(crate) fn own_leaf<const D: usize>(leaf: Tensor<D>) -> OwnLeaf {
    Box::new(move |gradients| leaf.grad(gradients).map(Tensor::into_dispatch))
}
