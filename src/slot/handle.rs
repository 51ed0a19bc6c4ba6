use std::any::Any;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Device, Tensor};

use super::parameter::ParameterSlot;

/// What a parameter in fused form carries: the way from every read of it to its slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotHandle {
    slot: Arc<dyn Any + Send + Sync>,
}

impl SlotHandle {
    pub(crate) fn new<const D: usize>(slot: Arc<ParameterSlot<D>>) -> Self {
        Self { slot }
    }
}

impl Reparameterization for SlotHandle {
    const NAME: &'static str = "backburn";

    /// The placeholder tells how the parameter is to be read: whatever the user's code did to the
    /// module (`valid`, `no_grad`) it did to the placeholder.
    fn apply<const D: usize>(&self, placeholder: Tensor<D>) -> Tensor<D> {
        let slot = Arc::clone(&self.slot)
            .downcast::<ParameterSlot<D>>()
            .expect("a slot has the rank of its parameter");

        if !placeholder.is_autodiff() {
            slot.value()
        } else if !placeholder.is_tracked() {
            slot.constant()
        } else {
            slot.tapped()
        }
    }
}

/// The handle has no parameters of its own, and the slot stays where it is.
impl Module for SlotHandle {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {}

    fn map<M: ModuleMapper>(self, _mapper: &mut M) -> Self {
        self
    }
}

/// Whether `module`, or a part of it, is in fused form, and not for inference.
pub(crate) fn is_in_training<M: Module>(module: &M) -> bool {
    let mut look = Look::default();
    module.visit(&mut look);
    look.found
}

#[derive(Default)]
struct Look {
    /// Whether the last parameter is tracked.
    tracked: bool,
    found: bool,
}

impl ModuleVisitor for Look {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn visits a reparameterized parameter first, then enters its reparameterization.
        let slot = container_type == "Reparameterization" && name == SlotHandle::NAME;
        self.found |= slot && self.tracked;
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.tracked = param.base().is_tracked();
    }
}
