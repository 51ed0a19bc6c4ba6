use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};

use super::inventory::{Inventory, Role};

/// `module` on `device`, but for the values of the parameters whose gradients are released: these stay where
/// they are.
pub(super) fn moved<M: Module>(module: M, inventory: &Inventory, device: &Device) -> M {
    let mut values = Values {
        inventory,
        taken: HashMap::new(),
    };
    let module = module.map(&mut values).fork(device);
    module.map(&mut PutBack(values.taken))
}

/// Takes values out of their module, and leaves one element in the place of each.
struct Values<'a> {
    inventory: &'a Inventory,
    taken: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for Values<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.inventory.role(param.id) != Some(Role::Released) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let nothing = Tensor::zeros([1; D], (&value.device(), value.dtype()));
        self.taken.insert(id, Box::new(value));
        Param::from_mapped_value(id, nothing, mapper)
    }
}

struct PutBack(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for PutBack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.remove(&param.id) else {
            return param;
        };
        let value = value.downcast::<Tensor<D>>();
        let value = value.expect("a value has the rank of its parameter");
        let (id, _nothing, mapper) = param.consume();
        Param::from_mapped_value(id, *value, mapper)
    }
}
