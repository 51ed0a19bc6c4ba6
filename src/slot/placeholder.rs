use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{GradientCheckpointingStrategy, Tensor, TensorCreationOptions};

use super::inventory::{Inventory, Role};
use crate::pass::Pass;
use crate::tap::{GradientSink, tap};

/// A tensor with the shape, dtype and device of `value` that costs one element and holds NaN.
fn stand_in<const D: usize>(value: &Tensor<D>) -> Tensor<D> {
    let device = value.device().inner();
    let options = TensorCreationOptions::new(device).with_dtype(value.dtype());
    Tensor::<D>::full([1; D], f32::NAN, options).expand::<D, _>(value.shape())
}

/// The placeholder of a parameter in fused form: code that reads the parameter around
/// [`Param::val`] gets NaN, and a backward pass through it panics with the path.
///
/// `tick` must be deeper than every tap: then the trap springs before any parameter is updated.
pub(crate) fn trap<const D: usize>(
    value: &Tensor<D>,
    path: &str,
    pass: &Pass,
    tick: usize,
    strategy: GradientCheckpointingStrategy,
) -> Tensor<D> {
    let trap = Trap {
        path: path.to_string(),
    };
    let tick = pass.tick(tick, &value.device(), strategy);
    tap(stand_in(value), strategy, tick, Arc::new(trap), None)
}

#[derive(Debug)]
struct Trap {
    path: String,
}

impl GradientSink for Trap {
    fn receive(&self, _gradient: DispatchTensor) -> Option<DispatchTensor> {
        panic!(
            "parameter `{}` was read around `Param::val()` in a fused step (through `Deref`, \
             `base()` or `into_value()`), which gives a placeholder: read it with `val()`. No \
             parameter was updated",
            self.path
        );
    }
}

/// The structure of `module` without the values of its trainable parameters.
pub(crate) fn hollow<M: Module>(module: M, inventory: &Inventory) -> M {
    module.map(&mut Hollow { inventory })
}

struct Hollow<'a> {
    inventory: &'a Inventory,
}

impl ModuleMapper for Hollow<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.inventory.role(param.id) {
            None | Some(Role::Frozen) => param,
            Some(Role::Released | Role::Retained) => {
                let (id, value, mapper) = param.consume();
                Param::from_mapped_value(id, stand_in(&value), mapper)
            }
        }
    }
}
