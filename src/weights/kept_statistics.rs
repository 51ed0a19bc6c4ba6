use burn::module::Module;

use super::running_states::RunningStates;
use crate::pass::Reads;

/// The running states of a module whose passes see them alike. Dropped, they are as they were, with what was aside,
/// unless what has become of them was [committed](Self::commit).
pub(crate) struct KeptStatistics<M: Module> {
    /// None if it has no states.
    module: Option<M>,
    states: RunningStates,
    /// How the passes read them.
    pub(crate) reads: Reads,
}

impl<M: Module> KeptStatistics<M> {
    /// Of `module`, whose pass is to come.
    pub(crate) fn of(module: &M) -> Self {
        Self::untouched(module, Reads::InTime).merged()
    }

    /// The same, but nothing is merged if it is not known how states are read: then the first pass shows it.
    pub(crate) fn before(module: &M, known: Option<Reads>) -> Self {
        let kept = Self::untouched(module, known.unwrap_or_default());
        if known.is_none() && kept.states.has_own() {
            return kept;
        }
        let kept = kept.merged();
        kept.rewind();
        kept
    }

    fn merged(mut self) -> Self {
        self.module
            .iter()
            .for_each(|module| self.states.merge(module));
        self.see();
        self
    }

    fn untouched(module: &M, reads: Reads) -> Self {
        let states = RunningStates::of(module);
        Self {
            module: (!states.is_empty()).then(|| module.clone()),
            states,
            reads,
        }
    }

    /// What was aside is there: it has been merged, or an update has brought it forth.
    pub(crate) fn see(&mut self) {
        if let Some(module) = self.module.as_ref().filter(|_| !self.states.are_seen()) {
            self.states.see(module);
        }
    }

    /// Whether it matters how the states are read; waits for the device.
    pub(crate) fn differ(&self) -> bool {
        self.states.differ(|value| {
            let data = value.clone().inner().into_data();
            data.as_bytes().to_vec()
        })
    }

    /// A pass begins, which sees them as the first did.
    pub(crate) fn rewind(&self) {
        if let Some(module) = &self.module {
            self.states.merge(module);
            self.states.show(module, self.reads);
        }
    }

    /// What the last pass has made of the states counts.
    pub(crate) fn commit(mut self) {
        if let Some(module) = self.module.take()
            && self.reads == Reads::Late
        {
            // The update has brought forth what was aside, or would have.
            self.states.show_own_in_time(&module);
        }
    }
}

impl<M: Module> Drop for KeptStatistics<M> {
    fn drop(&mut self) {
        self.see();
        self.reads = Reads::InTime;
        self.rewind();
    }
}
