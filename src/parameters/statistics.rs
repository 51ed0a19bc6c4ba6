use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use super::exchange::exchange;
use super::list::list;
use crate::tap::lift;

/// The running statistics among the parameters of `module`, found by reading alone: clones share them, and other threads
/// may be computing with them.
///
/// A parameter shows itself to a visitor, a statistic a parameter that is made for the visit. So the place in memory of the
/// value tells them apart, while that of the visit before is held.
pub(crate) fn running_statistics<M: Module>(module: &M) -> HashSet<ParamId> {
    let (held, again) = (list(module), list(module));
    let of_both = held
        .iter()
        .zip(&again)
        .map(|(held, again)| (&held.param, &again.param));
    // A parameter without a value yet is no statistic.
    let moved =
        of_both.filter(|(held, again)| held.is_initialized() && held.place() != again.place());
    moved.map(|(_, again)| again.id()).collect()
}

/// Burn keeps the last update of a statistic aside until it is read or the module is taken for
/// validation.
pub(crate) fn merge_pending<M: Module>(module: &M) {
    drop(module.valid());
}

/// `module` with running statistics of its own, which clones would share.
pub(crate) fn with_own_statistics<M: Module>(module: M) -> M {
    let strategies = list(&module).into_iter().filter_map(|parameter| {
        let strategy = parameter.param.value().gradient_checkpointing_strategy()?;
        Some((parameter.param.id(), strategy))
    });
    let strategies: HashMap<_, _> = strategies.collect();
    // Burn copies them only where it leaves autodiff, and what comes back has its default strategy.
    exchange(
        module.valid().train(),
        |param| strategies.contains_key(&param.id()),
        |id, value| {
            let requires_grad = value.is_require_grad();
            let value = lift(value.untyped().inner(), strategies[&id]);
            value.set_require_grad(requires_grad).into()
        },
    )
}
