use burn::module::Module;

use super::states::{States, Values, put};
use crate::pass::Reads;
use crate::tap::node;

/// The running states of a block, as its first run has seen them.
#[derive(Debug)]
pub(crate) struct SeenStates(States);

impl SeenStates {
    /// Those of `block`, before its first run.
    pub(crate) fn before<M: Module>(block: &M) -> Self {
        Self(States::of(block))
    }

    /// The run is over: an update has brought forth what was aside.
    pub(crate) fn after<M: Module>(mut self, block: &M) -> Self {
        self.0.see(block);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it matters how the states are read.
    pub(crate) fn differ(&self) -> bool {
        self.0.differ(|value| node::<1>(value))
    }

    /// Whether there are some that no batch normalization has: what the block returns can depend on them.
    pub(crate) fn has_own(&self) -> bool {
        self.0.has_own()
    }

    /// Shows them again as the first run has seen them, until what is returned is dropped: what is aside is merged.
    pub(crate) fn again<'a, M: Module>(&'a self, block: &'a M, reads: Reads) -> Again<'a, M> {
        self.0.merge(block);
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
        let now = self.0.now(block);
        self.0.show(block, reads);
        Again {
            states: &self.0,
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
    states: &'a States,
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
