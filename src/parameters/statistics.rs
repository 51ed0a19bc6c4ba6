//! Running statistics.
//!
//! # Invariants
//!
//! Clones of a Burn module share its running statistics. Burn keeps the last update of each thread pending. A pending update
//! can't be read or put back, only merged: `RunningState::value_sync` merges on a thread that has one, `RunningState::value` never
//! does, and `Module::valid` always does.

use std::collections::{HashSet, VecDeque};

use backburn_base::{AnyTensor, list};
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::map::ValuesInOrder;
use crate::quantized::weight_of_values;

/// Returns the ids of the running statistics of `module`, which it only reads: other threads may compute with it.
pub(crate) fn running_statistics<M: Module>(module: &M) -> HashSet<ParamId> {
    // A visitor receives a statistic as a parameter created for the visit: while the first is held, the second has another address.
    let (held, again) = (list(module), list(module));
    // Quantized values of an adapter are also shown as a parameter that is created for the visit.
    let of_both = held
        .iter()
        .zip(&again)
        .filter(|(held, _)| weight_of_values(&held.path).is_none())
        .map(|(held, again)| (&held.param, &again.param));
    // A parameter that is not initialized is not a statistic. `list` initializes one without elements.
    let moved = of_both.filter(|(held, again)| {
        held.is_initialized() && held.shape().num_elements() > 0 && held.place() != again.place()
    });
    moved.map(|(_, again)| again.id()).collect()
}

/// Returns the ids of the running statistics of frozen batch normalizations. These read them with `RunningState::value`, without
/// a pending update.
pub(crate) fn frozen_statistics<M: Module>(module: &M) -> HashSet<ParamId> {
    let mut frozen = FrozenStatistics::default();
    module.visit(&mut frozen);
    // A frozen snapshot may have the ids of a trained normalization.
    &frozen.found - &frozen.trained
}

#[derive(Default)]
struct FrozenStatistics {
    /// The fields that are being visited; `None` for those of other modules.
    fields: Vec<Option<String>>,
    /// Burn visits the flag of a batch normalization before its statistics.
    is_frozen: bool,
    found: HashSet<ParamId>,
    trained: HashSet<ParamId>,
}

impl ModuleVisitor for FrozenStatistics {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        let is_norm = container_type == "Struct:BatchNorm";
        self.fields.push(is_norm.then(|| name.to_string()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.fields.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if let Some(Some("training")) = self.fields.last().map(Option::as_deref) {
            self.is_frozen = !flag.is_enabled();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let field = self.fields.last().and_then(Option::as_deref);
        if let Some("running_mean" | "running_var") = field {
            match self.is_frozen {
                true => self.found.insert(param.id),
                false => self.trained.insert(param.id),
            };
        }
    }
}

/// Merges the pending updates of the running statistics of `module`.
pub(crate) fn merge_pending<M: Module>(module: &M) {
    drop(module.valid());
}

/// Returns `module` with running statistics that it shares with no other module. Merges pending updates.
pub(crate) fn with_own_statistics<M: Module>(module: M) -> M {
    if running_statistics(&module).is_empty() {
        return module;
    }
    // Burn creates new statistics only when a module leaves autodiff. Everything else is then restored.
    let mut flags = Flags::default();
    module.visit(&mut flags);
    let own = module.valid();
    let before = ValuesInOrder::of(&module, |_| true);
    let strategies = before.iter().map(|it| it.gradient_checkpointing_strategy());
    let mut strategies = strategies.flatten();
    let have_default = strategies.all(|it| it == GradientCheckpointingStrategy::default());
    drop(strategies);
    let own = match have_default {
        true => own.train(),
        // `train` would give constants the default strategy, and Burn refuses to mix two. Without autodiff they fit any.
        false => own,
    };
    // `train` enables a flag that was disabled by `valid`, for example of a dropout that is switched off.
    before.put_into(own.map(&mut flags), |_own, value| value)
}

/// A visitor that keeps the flags of a module in its order, and a mapper that restores them.
#[derive(Default)]
struct Flags(VecDeque<Param<Flag>>);

impl ModuleVisitor for Flags {
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.push_back(flag.clone());
    }
}

impl ModuleMapper for Flags {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.pop_front().unwrap_or(flag)
    }
}

/// The values of running statistics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics(ValuesInOrder);

impl Statistics {
    /// Returns these statistics of `module`, without pending updates.
    pub(crate) fn of<M: Module>(module: &M, ids: &HashSet<ParamId>) -> Self {
        if ids.is_empty() {
            return Self::default();
        }
        Self(ValuesInOrder::of(module, |id| ids.contains(&id)))
    }

    /// Returns these statistics of `module`, which are all that it has. Merges pending updates.
    pub(crate) fn merged<M: Module>(module: &M, ids: &HashSet<ParamId>) -> Self {
        if !ids.is_empty() {
            merge_pending(module);
        }
        Self::of(module, ids)
    }

    /// Puts the values into `module` and its clones.
    fn put<M: Module>(&self, module: &M) {
        let values = self.0.clone();
        drop(values.put_into(module.clone(), |_before, value| value));
    }

    /// Puts the values into `module`. Dropping the guard restores the previous values.
    pub(crate) fn put_until_dropped<M: Module>(&self, module: &M) -> StatisticsGuard<M> {
        let guard = StatisticsGuard::among(module, &self.0.0.keys().copied().collect());
        self.put(module);
        guard
    }

    /// Returns the value of this statistic; the last one if frozen modules share its id.
    pub(crate) fn get(&self, id: ParamId) -> Option<&AnyTensor> {
        self.0.0.get(&id)?.back()
    }

    /// Copies the values into `module` and its clones, on the devices of their statistics.
    pub(crate) fn copy_into<M: Module>(&self, module: &M) {
        let values = self.0.clone();
        let put = |before: AnyTensor, value: AnyTensor| before.replaced_by(value.0.inner());
        drop(values.put_into(module.clone(), put));
    }

    /// Keeps the statistics for whose last value `is_kept` returns `true`.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(ParamId, &AnyTensor) -> bool) {
        let values = &mut self.0.0;
        values.retain(|id, values| values.back().is_some_and(|last| is_kept(*id, last)));
    }
}

/// A snapshot of the running statistics of a module, pending updates included. On drop it restores them, unless they were
/// committed.
pub(crate) struct StatisticsGuard<M: Module> {
    /// `None` if it has no statistics.
    module: Option<M>,
    pub(crate) before: Statistics,
}

impl<M: Module> StatisticsGuard<M> {
    /// Takes a snapshot of these statistics of `module`, which are all that it has. Merges pending updates.
    pub(crate) fn among(module: &M, ids: &HashSet<ParamId>) -> Self {
        let before = Statistics::merged(module, ids);
        let module = (!ids.is_empty()).then(|| module.clone());
        Self { module, before }
    }

    /// Leaves the statistics as they are now.
    pub(crate) fn commit(mut self) {
        self.module = None;
    }
}

impl<M: Module> Drop for StatisticsGuard<M> {
    fn drop(&mut self) {
        if let Some(module) = &self.module {
            // The updates since the snapshot would be merged later.
            merge_pending(module);
            self.before.put(module);
        }
    }
}
