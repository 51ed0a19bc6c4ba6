use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};

use super::slots::Slots;

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

/// Fills the hollow module with the values in the slots.
pub(crate) fn restore<M: Module>(hollow: M, slots: &Slots, which: Which<'_>) -> M {
    hollow.map(&mut Restore { slots, which })
}

struct Restore<'a> {
    slots: &'a Slots,
    which: Which<'a>,
}

impl Restore<'_> {
    fn value<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        let slot = self.slots.typed::<D>(id)?;
        Some(match self.which {
            Which::Rests => slot.leaf(),
            Which::RestsWithOwner => slot.leaf_of_owner(),
            Which::OnHost(host) => slot.leaf_on(host),
            Which::Computes => slot.leaf_here(),
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
