use burn::module::Module;

use super::parameter::Which;
use super::slots::Slots;
use crate::parameters::exchange;

/// Fills the hollow module with the values in the slots.
pub(crate) fn restore<M: Module>(hollow: M, slots: &Slots, which: Which<'_>) -> M {
    exchange(
        hollow,
        |param| slots.has(param.id()),
        |id, _placeholder| slots.get(id).any_leaf(which),
    )
}
