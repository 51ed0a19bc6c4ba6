use burn::module::Module;

use super::view::Which;
use super::views::Views;
use crate::parameters::exchange;

/// Fills the hollow module with the values of the parameters.
pub(crate) fn restore<M: Module>(hollow: M, views: &Views, which: Which<'_>) -> M {
    exchange(
        hollow,
        |param| views.has(param.id()),
        |id, _placeholder| views.get(id).any_leaf(which),
    )
}
