use burn::module::Module;

use super::states::{States, Values};
use crate::parameters::AnyTensor;
use crate::pass::Reads;

/// The running states of a module whose passes see them alike. Dropped, they are as they were, with what was aside,
/// unless what has become of them was [committed](Self::commit).
pub(crate) struct KeptStatistics<M: Module> {
    /// None if it has no states.
    module: Option<M>,
    states: States,
    /// As they are read late, and in time.
    late: Values,
    merged: Values,
}

impl<M: Module> KeptStatistics<M> {
    /// Of `module`, whose pass is to come.
    pub(crate) fn of(module: &M) -> Self {
        Self::merging(module, States::of(module))
    }

    /// The same, but nothing is merged if it is not known how states are read: then the first pass shows it.
    pub(crate) fn before(module: &M, known: Option<Reads>) -> Self {
        let states = States::of(module);
        if known.is_none() && states.has_own() {
            return Self::untouched(module, states);
        }
        let kept = Self::merging(module, states);
        kept.rewind(known.unwrap_or_default());
        kept
    }

    fn merging(module: &M, states: States) -> Self {
        let mut kept = Self::untouched(module, states);
        kept.states.merge(module);
        kept.see();
        kept
    }

    fn untouched(module: &M, states: States) -> Self {
        Self {
            late: states.values(module),
            merged: Values::new(),
            module: (!states.is_empty()).then(|| module.clone()),
            states,
        }
    }

    /// What was aside is there: it has been merged, or an update has brought it forth.
    pub(crate) fn see(&mut self) {
        if let Some(module) = self.module.as_ref().filter(|_| self.merged.is_empty()) {
            self.merged = self.states.values(module);
        }
    }

    /// Whether it matters how the states are read; waits for the device.
    pub(crate) fn differ(&self) -> bool {
        let bits = |value: &AnyTensor| {
            let data = value.clone().untyped().inner().into_data();
            data.as_bytes().to_vec()
        };
        self.states.differ(&self.late, &self.merged, bits)
    }

    /// A pass begins, which sees them as the first did.
    pub(crate) fn rewind(&self, reads: Reads) {
        let Self { late, merged, .. } = self;
        if let Some(module) = &self.module {
            self.states.merge(module);
            self.states.put(module, reads, late, merged);
        }
    }

    /// What the last pass has made of the states counts.
    pub(crate) fn commit(mut self, reads: Reads) {
        let Some(module) = self.module.take() else {
            return;
        };
        if reads == Reads::Late {
            // The update has brought forth what was aside, or would have.
            let merged = &self.merged;
            let own = self.states.only_own();
            own.put(&module, Reads::InTime, merged, merged);
        }
    }
}

impl<M: Module> Drop for KeptStatistics<M> {
    fn drop(&mut self) {
        self.see();
        self.rewind(Reads::InTime);
    }
}
