use std::any::Any;
use std::sync::Arc;

use burn::module::{Module, Reparameterization};
use burn::tensor::Tensor;

use super::parameter::ParameterSlot;
use super::placeholder::Identity;
use crate::parameters::Parameter;

/// What a parameter in fused form carries: the way from every read of it to its slot. It has no parameters of its own, and
/// the slot stays where it is.
#[derive(Module, Debug)]
pub(crate) struct SlotHandle {
    #[module(skip)]
    slot: Arc<dyn Any + Send + Sync>,
    #[module(skip)]
    placeholder: Identity,
}

impl SlotHandle {
    pub(crate) fn new<const D: usize>(
        slot: Arc<ParameterSlot<D>>,
        placeholder: &Tensor<D>,
    ) -> Self {
        Self {
            slot,
            placeholder: Identity::of(placeholder),
        }
    }
}

/// Whether the parameter is in fused form, or comes over whenever it is read.
pub(super) fn has_slot(parameter: &Parameter) -> bool {
    parameter.reparameterization.as_deref() == Some(SlotHandle::NAME)
}

impl Reparameterization for SlotHandle {
    const NAME: &'static str = "backburn";

    /// The placeholder tells how the parameter is to be read: whatever the user's code did to the
    /// module (`valid`, `no_grad`) it did to the placeholder.
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let slot = Arc::clone(&self.slot)
            .downcast::<ParameterSlot<D>>()
            .expect("a slot has the rank of its parameter");

        if Identity::of(&base) != self.placeholder {
            panic!(
                "parameter `{}` was mapped, moved or loaded in the closure of a fused step, where the \
                 model has no values of its own: change it between steps with \
                 `FusedOptimizer::change_model`, or compute with another value in the closure \
                 (`param.val() + noise`)",
                slot.path
            );
        }
        if !base.is_autodiff() {
            slot.read_untrained()
        } else if !base.is_tracked() {
            slot.constant_of(slot.read_untrained())
        } else {
            slot.read()
        }
    }
}
