//! Running states of code that runs twice: both runs see them alike, and they are updated once.
//!
//! Burn keeps the last update of every thread aside. `RunningState::value_sync` shows it on the thread that made it, as
//! batch normalization reads its statistics; `RunningState::value` does not, until the next update of that thread. What is
//! aside can be neither looked at nor put back, only merged.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};

use crate::parameters::{AnyTensor, exchange, list, merge_pending, running_statistics, values};
use crate::pass::Reads;

/// The values of running states, as they are without what is aside.
pub(super) type Values = HashMap<ParamId, AnyTensor>;

/// The running states of a module.
#[derive(Debug)]
pub(super) struct States {
    all: HashSet<ParamId>,
    /// Those that no batch normalization has.
    own: HashSet<ParamId>,
}

impl States {
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let all = running_statistics(module);
        let own = if all.is_empty() {
            HashSet::new()
        } else {
            let parameters = list(module).into_iter();
            let own = parameters.filter(|parameter| parameter.container != "Struct:BatchNorm");
            let own = own.map(|parameter| parameter.param.id());
            own.filter(|id| all.contains(id)).collect()
        };
        Self { all, own }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there are some that no batch normalization has.
    pub(super) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Those alone that no batch normalization has.
    pub(super) fn only_own(&self) -> Self {
        Self {
            all: self.own.clone(),
            own: self.own.clone(),
        }
    }

    pub(super) fn values<M: Module>(&self, module: &M) -> Values {
        values(module, &self.all)
    }

    /// Puts in, of those that are read late, what is of `late`, and of the others what is of `in_time`.
    pub(super) fn put<M: Module>(&self, module: &M, reads: Reads, late: &Values, in_time: &Values) {
        if self.is_empty() {
            return;
        }
        let value = |id| {
            let is_late = reads == Reads::Late && self.own.contains(&id);
            let values = if is_late { late } else { in_time };
            values.get(&id)
        };
        // The clones of a module share its states.
        drop(exchange(
            module.clone(),
            |param| value(param.id()).is_some(),
            |id, changed| value(id).cloned().unwrap_or(changed),
        ));
    }

    /// Merges what is aside, which Burn does when a module is taken for validation.
    pub(super) fn merge<M: Module>(&self, module: &M) {
        if !self.is_empty() {
            merge_pending(module);
        }
    }

    /// Whether one of those that no batch normalization has differs in `what` between `a` and `b`.
    pub(super) fn differ<T: PartialEq>(
        &self,
        a: &Values,
        b: &Values,
        what: impl Fn(&AnyTensor) -> T,
    ) -> bool {
        let differs = |id| match (a.get(id), b.get(id)) {
            (Some(a), Some(b)) => what(a) != what(b),
            _ => false,
        };
        self.own.iter().any(differs)
    }
}
