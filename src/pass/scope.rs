use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::Device;

use super::{Graph, Pass, Readers, Reads};
use crate::random::Seeds;

/// Where code of a pass is: in the step itself, in a run of a block, in a hook.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) pass: Arc<Pass>,
    pub(crate) place: ReadMode,
    /// Of the blocks within the one that is under way, whichever of its runs.
    seeds: Option<Arc<Seeds>>,
    /// What the innermost recomputation has read, including the blocks within it.
    pub(crate) recomputed_reads: Option<Arc<Reads>>,
}

/// What becomes of a parameter that is read.
#[derive(Clone, Debug)]
pub(crate) enum ReadMode {
    /// It is tapped in this graph.
    Recorded(Arc<Graph>),
    /// It is a constant: a block runs without recording, and notes what it reads.
    Unrecorded(Arc<Readers>),
    /// It must not be read: a hook is called for the parameter of this path, and the graph is locked.
    Hook(Arc<str>),
}

thread_local! {
    static CURRENT: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Puts the scope back that was there before, when dropped.
pub(crate) struct ScopeGuard {
    before: Option<Scope>,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

impl Scope {
    /// The scope on this thread, if it takes part in a pass.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// This thread is here until what is returned is dropped.
    #[must_use]
    pub(crate) fn enter(self) -> ScopeGuard {
        ScopeGuard {
            before: CURRENT.replace(Some(self)),
        }
    }

    /// Enters the closure of a step on this thread, until what is returned is dropped.
    #[must_use]
    pub(crate) fn enter_step(pass: &Arc<Pass>) -> ScopeGuard {
        let scope = Self {
            place: ReadMode::Recorded(pass.graph.clone()),
            pass: pass.clone(),
            seeds: None,
            recomputed_reads: None,
        };
        ScopeGuard {
            before: CURRENT.replace(Some(scope)),
        }
    }

    /// A block whose operations are not recorded. A block within it reads for it.
    pub(crate) fn unrecorded(&self, seed: u64) -> (Self, Arc<Readers>) {
        let readers = match &self.place {
            ReadMode::Unrecorded(readers) => readers.clone(),
            _ => Arc::default(),
        };
        (
            self.block(ReadMode::Unrecorded(readers.clone()), seed),
            readers,
        )
    }

    /// A block whose operations are recorded with those around it.
    pub(crate) fn kept(&self, seed: u64) -> Self {
        self.block(self.place.clone(), seed)
    }

    /// The second run of a block, in a graph of its own, and what it reads.
    pub(crate) fn recompute(&self, seed: u64) -> (Self, Arc<Reads>) {
        let reads = Arc::<Reads>::default();
        let scope = Self {
            recomputed_reads: Some(reads.clone()),
            ..self.block(ReadMode::Recorded(Arc::default()), seed)
        };
        (scope, reads)
    }

    fn block(&self, place: ReadMode, seed: u64) -> Self {
        Self {
            pass: self.pass.clone(),
            place,
            seeds: Some(Arc::new(Seeds::from(seed))),
            recomputed_reads: self.recomputed_reads.clone(),
        }
    }

    /// A hook, called for the parameter of this path.
    pub(crate) fn hook(pass: &Arc<Pass>, path: &str) -> Self {
        Self {
            pass: pass.clone(),
            place: ReadMode::Hook(path.into()),
            seeds: None,
            recomputed_reads: None,
        }
    }

    /// No backward pass goes through what was recorded here.
    pub(crate) fn abandon(&self) {
        if let ReadMode::Recorded(graph) = &self.place {
            graph.abandon();
        }
    }

    pub(crate) fn is_in_block(&self) -> bool {
        self.seeds.is_some()
    }

    /// Whether operations are recorded.
    pub(crate) fn records(&self) -> bool {
        matches!(self.place, ReadMode::Recorded(_))
    }

    /// The seed for the next block in here, which computes on `device`.
    pub(crate) fn next_seed(&self, device: &Device) -> u64 {
        match &self.seeds {
            Some(seeds) => seeds.next(),
            None => self.pass.blocks.next_seed(device),
        }
    }
}
