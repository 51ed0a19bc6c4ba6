use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::inventory::{Inventory, Role};
use crate::device::{forked, host, is_remote};

/// `module` on `device`, but for the values of the parameters for which `stays` says that they stay where they are.
pub(super) fn moved_but_for<M: Module>(
    module: M,
    stays: impl Fn(ParamId) -> bool,
    device: &Device,
) -> M {
    let mut values = Values {
        stays,
        // Not on a server, which would be asked for them.
        beside: match is_remote(device) {
            true => host(device).autodiff(),
            false => device.clone(),
        },
        taken: HashMap::new(),
    };
    let module = forked(module.map(&mut values), device);
    module.map(&mut PutBack(values.taken))
}

/// Looks at the parameters of `module` that were moved to the host and are not in training: CubeCL reads when
/// somebody does, and shows what has been written in place by then.
pub(super) fn look_at_once<M: Module>(module: &M, inventory: &Inventory) {
    module.visit(&mut Look { inventory });
}

struct Look<'a> {
    inventory: &'a Inventory,
}

impl ModuleVisitor for Look<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let None | Some(Role::Frozen) = self.inventory.role(param.id) {
            param.base().into_data().as_bytes();
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        param.base().into_data().as_bytes();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        param.base().into_data().as_bytes();
    }
}

/// Takes values out of their module, and leaves one element in the place of each.
struct Values<F> {
    stays: F,
    /// Where the elements in their places are.
    beside: Device,
    taken: HashMap<ParamId, Box<dyn Any>>,
}

impl<F: Fn(ParamId) -> bool> ModuleMapper for Values<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !(self.stays)(param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let nothing = Tensor::empty([1; D], (&self.beside, value.dtype()));
        self.taken.insert(id, Box::new(value));
        Param::from_mapped_value(id, nothing, mapper)
    }
}

struct PutBack(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for PutBack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // A frozen parameter may be in several places.
        let Some(value) = self.0.get(&param.id) else {
            return param;
        };
        let value = value.downcast_ref::<Tensor<D>>();
        let value = value
            .expect("a value has the rank of its parameter")
            .clone();
        let (id, _nothing, mapper) = param.consume();
        Param::from_mapped_value(id, value, mapper)
    }
}
