use std::collections::HashSet;

use backburn_base::{AnyParam, forked, host, is_remote, lift, list, with_value};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor};

use super::entry::Role;
use super::inventory::Inventory;
use crate::parameters::take_values;
use crate::quantized::{is_shape_stub, moved};

/// Moves `module` to `device`, except for the parameters for which `stays` returns `true`.
pub(super) fn move_except<M: Module>(
    module: M,
    stays: impl Fn(ParamId) -> bool,
    device: &Device,
) -> M {
    // Not on a server: each would be a network request.
    let stub_device = if is_remote(device) {
        host(device).autodiff()
    } else {
        device.clone()
    };
    let (module, values) = take_values(module, stays, |_| stub_device.clone());
    values.put_into(fork_quantized(module, device), |_stub, value| value)
}

/// Moves `module` to `device` as [`Module::fork`] does, but keeps quantized values quantized.
pub(crate) fn fork_quantized<M: Module>(module: M, device: &Device) -> M {
    let is_quantized = |param: &dyn AnyParam| {
        param.is_initialized() && matches!(param.value().dtype(), DType::QFloat(_))
    };
    let parameters = list(&module).into_iter();
    let quantized = parameters.filter(|parameter| is_quantized(&*parameter.param));
    let quantized: HashSet<_> = quantized.map(|parameter| parameter.param.id()).collect();
    if quantized.is_empty() {
        return forked(module, device);
    }
    let (module, values) = take_values(module, |id| quantized.contains(&id), |device| device);
    let inner = device.clone().inner();
    values.put_into(forked(module, device), |_stub, value| {
        let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
        let value = moved(value.0.inner(), &inner);
        match device.is_autodiff() {
            true => lift(value, strategy).into(),
            false => value.into(),
        }
    })
}

/// Reads the parameters of `module` that were moved to the host and are not trained. CubeCL reads lazily, and would
/// show later in-place writes.
pub(super) fn force_reads<M: Module>(module: &M, inventory: &Inventory) {
    module.visit(&mut ForceReads { inventory });
}

struct ForceReads<'a> {
    inventory: &'a Inventory,
}

impl ModuleVisitor for ForceReads<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let None | Some(Role::Frozen) = self.inventory.role(param.id) {
            let value = with_value(param).base();
            if !is_shape_stub(value.dtype()) {
                value.into_data().as_bytes();
            }
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        param.base().into_data().as_bytes();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        param.base().into_data().as_bytes();
    }
}
