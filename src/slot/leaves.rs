//! The parameters that stay ordinary leaves: the module shares their values with their slots, but while these are
//! stepped.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use super::placeholder::gone;
use super::slots::Slots;
use crate::device::caught;
use crate::tap::lift;

/// `module` without the values of its leaves, so that their slots are the only owners and step them in place.
pub(super) fn let_go<M: Module>(module: M, slots: &Slots) -> M {
    mapped(module, &mut LetGo(slots), slots)
}

/// `module` with the values that the slots of its leaves have.
pub(super) fn renewed<M: Module>(module: M, slots: &Slots) -> M {
    mapped(module, &mut Renew(slots), slots)
}

fn mapped<M: Module>(module: M, mapper: &mut impl ModuleMapper, slots: &Slots) -> M {
    if slots.leaves().is_empty() {
        return module;
    }
    module.map(mapper)
}

struct LetGo<'a>(&'a Slots);

impl ModuleMapper for LetGo<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.0.leaves().contains(&param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let nothing = Tensor::empty([1; D], (&value.device(), value.dtype()));
        Param::from_mapped_value(id, nothing, mapper)
    }
}

struct Renew<'a>(&'a Slots);

impl ModuleMapper for Renew<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.0.leaves().contains(&param.id) {
            return param;
        }
        let Some(slot) = self.0.typed::<D>(param.id) else {
            return param;
        };
        let (id, _nothing, mapper) = param.consume();
        // Whatever has ended the pass is on its way: who reads a value that is gone is told.
        let value = caught(|| slot.leaf())
            .unwrap_or_else(|_| lift(gone(slot.likeness(), &slot.path), slot.strategy));
        Param::from_mapped_value(id, value, mapper)
    }
}
