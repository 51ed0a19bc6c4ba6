use burn::module::Module;

use super::running_states::{RunningStates, Values, put};
use crate::pass::Reads;

impl RunningStates {
    /// Shows them to another run of `block` as the first has seen them, until what is returned is dropped: what is aside is
    /// merged.
    pub(crate) fn again<'a, M: Module>(&'a self, block: &'a M, reads: Reads) -> Again<'a, M> {
        self.merge(block);
        self.shown(block, reads, Aside::Merged)
    }

    /// The same to a thread of its own. What is aside stays there, and what the run leaves beside it is the same again.
    pub(crate) fn again_elsewhere<'a, M: Module>(
        &'a self,
        block: &'a M,
        reads: Reads,
    ) -> Again<'a, M> {
        self.shown(block, reads, Aside::Left)
    }

    fn shown<'a, M: Module>(&'a self, block: &'a M, reads: Reads, aside: Aside) -> Again<'a, M> {
        let now = self.now(block);
        self.show(block, reads);
        Again {
            states: self,
            block,
            now,
            aside,
        }
    }
}

/// What becomes of updates that Burn keeps aside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aside {
    Merged,
    Left,
}

/// Puts the states of a block back as they were, when dropped.
pub(crate) struct Again<'a, M: Module> {
    states: &'a RunningStates,
    block: &'a M,
    now: Values,
    aside: Aside,
}

impl<M: Module> Again<'_, M> {
    /// Leaves the update of the run, which is that of the first: another run has spoiled that.
    pub(crate) fn mend(mut self) {
        self.states.merge(self.block);
        self.now.clear();
        self.aside = Aside::Left;
    }
}

impl<M: Module> Drop for Again<'_, M> {
    fn drop(&mut self) {
        if self.aside == Aside::Merged {
            self.states.merge(self.block);
        }
        if !self.now.is_empty() {
            put(self.block, |id| self.now.get(&id));
        }
    }
}
