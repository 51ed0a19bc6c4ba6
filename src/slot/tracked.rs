//! The parameters of a block that are trained: those that have a slot, and those that stay ordinary leaves.

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Device, Gradients, Tensor};

use super::handle::SlotHandle;
use crate::tap::lift;

/// Whether `module`, or a part of it, is in fused form, and not for inference.
pub(crate) fn is_in_training<M: Module>(module: &M) -> bool {
    let mut tracked = Tracked::default();
    module.visit(&mut tracked);
    tracked.found.iter().any(|found| found.has_slot)
}

/// The tracked values of `module`, which is in fused form, that are in no slot, each with its place among the
/// float parameters: those of parameters that stay ordinary leaves, and what the user's code has put in the
/// place of a parameter.
pub(crate) fn slotless<M: Module>(module: &M) -> Vec<(usize, TrackedTensor)> {
    let mut tracked = Tracked::default();
    module.visit(&mut tracked);
    let slotless = tracked.found.into_iter().filter(|found| !found.has_slot);
    slotless.map(|found| (found.place, found.value)).collect()
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
    /// `what` says what it is to the block.
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>, what: impl FnOnce() -> String) -> Self {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let device = tensor.device();
        let inner = device.clone().inner();
        let zeros = move || Tensor::<D>::zeros(shape, (&inner, dtype)).into_dispatch();
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
    let mut renew = Renew {
        places,
        tracked,
        place: 0,
        leaves: Vec::new(),
    };
    let module = match places.is_empty() {
        true => module,
        false => module.map(&mut renew),
    };
    (module, renew.leaves)
}

/// Finds the gradient of `leaf`, which has none where nothing depends on it.
pub(crate) fn own_leaf<const D: usize>(leaf: Tensor<D>) -> OwnLeaf {
    Box::new(move |gradients| leaf.grad(gradients).map(Tensor::into_dispatch))
}

#[derive(Default)]
struct Tracked {
    found: Vec<Found>,
    /// Whether the last parameter is among them.
    last: bool,
    /// Of the next parameter.
    place: usize,
}

/// A parameter that is tracked.
struct Found {
    place: usize,
    value: TrackedTensor,
    has_slot: bool,
}

impl ModuleVisitor for Tracked {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        let is_slot = container_type == "Reparameterization" && name == SlotHandle::NAME;
        if let Some(found) = self.found.last_mut().filter(|_| is_slot && self.last) {
            found.has_slot = true;
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        self.last = value.is_tracked();
        if self.last {
            let place = self.place;
            let what =
                || format!("parameter {place} (counted from 0), which is computed outside of it");
            self.found.push(Found {
                place,
                value: TrackedTensor::new(value, what),
                has_slot: false,
            });
        }
        self.place += 1;
    }
}

struct Renew<'a> {
    places: &'a [usize],
    tracked: bool,
    /// Of the next parameter.
    place: usize,
    leaves: Vec<OwnLeaf>,
}

impl ModuleMapper for Renew<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.place += 1;
        if !self.places.contains(&(self.place - 1)) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let mut value = lift(value.inner(), strategy);
        if self.tracked {
            value = value.require_grad();
            self.leaves.push(own_leaf(value.clone()));
        }
        Param::from_mapped_value(id, value, mapper)
    }
}
