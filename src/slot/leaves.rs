//! The parameters that stay ordinary leaves: the module shares their values with their slots, but while these are
//! stepped.

use burn::module::Module;

use super::parameter::Which;
use super::slots::Slots;
use crate::parameters::{exchange, taken};

/// `module` without the values of its leaves, so that their slots are the only owners and step them in place.
pub(super) fn let_go<M: Module>(module: M, slots: &Slots) -> M {
    if slots.leaves().is_empty() {
        return module;
    }
    taken(module, |id| slots.leaves().contains(&id), |device| device).0
}

/// `module` with the values that the slots of its leaves have.
pub(super) fn renewed<M: Module>(module: M, slots: &Slots) -> M {
    if slots.leaves().is_empty() {
        return module;
    }
    exchange(
        module,
        |param| slots.leaves().contains(&param.id()),
        |id, _nothing| slots.get(id).any_leaf(Which::RestsOrGone),
    )
}
