//! Running states of code that runs twice: both runs see them alike, and they are updated once.
//!
//! Burn keeps the last update of every thread aside. `RunningState::value_sync` shows it on the thread that made it, as
//! batch normalization reads its statistics; `RunningState::value` does not, until the next update of that thread. What is
//! aside can be neither looked at nor put back, only merged.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::tensor::Tensor;

use crate::parameters::{AnyTensor, exchange, list, merge_pending, running_statistics, values};
use crate::pass::Reads;

/// The values of running states, as they are without what is aside.
pub(super) type Values = HashMap<ParamId, AnyTensor>;

/// The running states of a module, as both runs are to see them.
#[derive(Debug)]
pub(crate) struct RunningStates {
    all: HashSet<ParamId>,
    /// Those that no batch normalization has.
    own: HashSet<ParamId>,
    /// As they are read late, and in time: once what was aside has been merged, or an update has brought it forth.
    late: Values,
    in_time: Values,
}

impl RunningStates {
    /// Those of `module` as they are now.
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let all = running_statistics(module);
        let own = if all.is_empty() {
            HashSet::new()
        } else {
            let parameters = list(module).into_iter();
            let own = parameters.filter(|parameter| parameter.container != "Struct:BatchNorm");
            let own = own.map(|parameter| parameter.param.id());
            own.filter(|id| all.contains(id)).collect()
        };
        Self {
            late: values(module, &all),
            in_time: Values::new(),
            all,
            own,
        }
    }

    /// What was aside is there now.
    pub(crate) fn see<M: Module>(&mut self, module: &M) {
        self.in_time = self.now(module);
    }

    pub(super) fn are_seen(&self) -> bool {
        !self.in_time.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there are some that no batch normalization has.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    pub(super) fn now<M: Module>(&self, module: &M) -> Values {
        values(module, &self.all)
    }

    /// Shows them to a run of `module` that reads its own like this.
    pub(super) fn show<M: Module>(&self, module: &M, reads: Reads) {
        if self.is_empty() {
            return;
        }
        put(module, |id| {
            let is_late = reads == Reads::Late && self.own.contains(&id);
            let values = if is_late { &self.late } else { &self.in_time };
            values.get(&id)
        });
    }

    /// Brings forth what was aside of those that no batch normalization has.
    pub(super) fn show_own_in_time<M: Module>(&self, module: &M) {
        put(module, |id| {
            self.in_time.get(&id).filter(|_| self.own.contains(&id))
        });
    }

    /// Merges what is aside, which Burn does when a module is taken for validation.
    pub(super) fn merge<M: Module>(&self, module: &M) {
        if !self.is_empty() {
            merge_pending(module);
        }
    }

    /// Whether it matters how they are read: `what` of one that no batch normalization has differs.
    pub(crate) fn differ<T: PartialEq>(&self, what: impl Fn(&Tensor<1>) -> T) -> bool {
        let differs = |id| match (self.late.get(id), self.in_time.get(id)) {
            (Some(late), Some(in_time)) => what(late) != what(in_time),
            _ => false,
        };
        self.own.iter().any(differs)
    }
}

/// Puts these values in, of the states that have one.
pub(super) fn put<'a, M: Module>(module: &M, value: impl Fn(ParamId) -> Option<&'a AnyTensor>) {
    // The clones of a module share its states.
    drop(exchange(
        module.clone(),
        |param| value(param.id()).is_some(),
        |id, before| value(id).cloned().unwrap_or(before),
    ));
}
