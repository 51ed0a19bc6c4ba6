use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};

use super::Slot;
use super::inventory::{Inventory, Role};
use super::parameter::ParameterSlot;
use crate::device::moved;
use crate::tap::lift;

/// Which of its values a restored parameter has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which<'a> {
    /// That which rests, on the device of this replica if there are several.
    Rests,
    /// The same, where its owner has it.
    RestsWithOwner,
    /// The same on the host, which is this device.
    OnHost(&'a Device),
    /// That with which the model computes, unless it comes over for every use.
    Computes,
}

/// Fills the hollow module with the values in the slots, and with those of the parameters that
/// stayed ordinary leaves of `fused`.
pub(crate) fn restore<M: Module>(
    hollow: M,
    fused: &M,
    inventory: &Inventory,
    slots: &HashMap<ParamId, Arc<dyn Slot>>,
    which: Which<'_>,
) -> M {
    let mut left = Left {
        inventory,
        values: HashMap::new(),
    };
    fused.visit(&mut left);
    hollow.map(&mut Restore {
        slots,
        left: left.values,
        which,
    })
}

/// Collects the values of the parameters that are left to the end of a pass.
struct Left<'a> {
    inventory: &'a Inventory,
    values: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleVisitor for Left<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.inventory.role(param.id) == Some(Role::Retained) {
            self.values.insert(param.id, Box::new(param.base()));
        }
    }
}

struct Restore<'a> {
    slots: &'a HashMap<ParamId, Arc<dyn Slot>>,
    left: HashMap<ParamId, Box<dyn Any>>,
    which: Which<'a>,
}

impl Restore<'_> {
    fn value<const D: usize>(&mut self, id: ParamId) -> Option<Tensor<D>> {
        if let Some(slot) = self.slots.get(&id) {
            let slot = slot.clone().into_any().downcast::<ParameterSlot<D>>();
            let slot = slot.expect("a slot has the rank of its parameter");
            return Some(match self.which {
                Which::Rests => slot.leaf(),
                Which::RestsWithOwner => slot.leaf_of_owner(),
                Which::OnHost(host) => slot.leaf_on(host),
                Which::Computes => slot.leaf_here(),
            });
        }
        let value = self.left.remove(&id)?.downcast::<Tensor<D>>();
        let value = *value.expect("a value has the rank of its parameter");
        Some(match self.which {
            Which::OnHost(host) => {
                let strategy = value.gradient_checkpointing_strategy().unwrap_or_default();
                lift(moved(value.inner(), host), strategy).require_grad()
            }
            Which::Rests | Which::RestsWithOwner | Which::Computes => value,
        })
    }
}

impl ModuleMapper for Restore<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.value(param.id) {
            None => param,
            Some(value) => {
                let (id, _placeholder, mapper) = param.consume();
                Param::from_mapped_value(id, value, mapper)
            }
        }
    }
}
