//! The parameters that stay ordinary leaves: the module shares their values with their homes, but while these are
//! stepped.

use burn::module::Module;

use super::view::Which;
use super::views::Views;
use crate::parameters::{exchange, taken};

/// `module` without the values of its leaves, so that their homes are the only owners and step them in place.
pub(super) fn let_go<M: Module>(module: M, views: &Views) -> M {
    if views.leaves().is_empty() {
        return module;
    }
    taken(module, |id| views.leaves().contains(&id), |device| device).0
}

/// `module` with the values that the homes of its leaves have.
pub(super) fn renewed<M: Module>(module: M, views: &Views) -> M {
    if views.leaves().is_empty() {
        return module;
    }
    exchange(
        module,
        |param| views.leaves().contains(&param.id()),
        |id, _nothing| views.get(id).any_leaf(Which::RestsOrGone),
    )
}
