use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::Device;

use super::{BlockReads, Graph, NumberSource, Pass, RandomRun, Reads};
use crate::random::Seeds;

/// The position of a thread in a pass: in the step itself, in a run of a block, or in a hook.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) pass: Arc<Pass>,
    pub(crate) mode: ReadMode,
    /// The current block.
    pub(crate) block: Option<BlockScope>,
    /// The parameters that the innermost recomputation has read, including its nested blocks.
    pub(crate) recomputed_reads: Option<Arc<Reads>>,
}

/// The random numbers of a block.
#[derive(Clone, Debug)]
pub(crate) struct BlockScope {
    /// Seeds of the nested blocks, the same in both runs.
    seeds: Arc<Seeds>,
    source: NumberSource,
}

/// The mode in which a parameter is read.
#[derive(Clone, Debug)]
pub(crate) enum ReadMode {
    /// Tapped in this graph.
    Recorded(Arc<Graph>),
    /// A constant: a block runs without recording, and its reads are collected.
    Unrecorded(Arc<BlockReads>),
    /// Not allowed: a hook runs for the parameter at this path, or on another thread, and the graph is locked.
    Hook(Option<Arc<str>>),
}

thread_local! {
    static CURRENT: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// A guard that restores the previous scope.
pub(crate) struct ScopeGuard {
    before: Option<Scope>,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

impl Scope {
    /// Returns the scope of this thread, if it takes part in a pass.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Sets the scope of this thread until the guard is dropped.
    #[must_use]
    pub(crate) fn enter(self) -> ScopeGuard {
        ScopeGuard {
            before: CURRENT.replace(Some(self)),
        }
    }

    /// Enters a pass outside of blocks on this thread, until the guard is dropped.
    #[must_use]
    pub(crate) fn enter_pass(pass: &Arc<Pass>, mode: ReadMode) -> ScopeGuard {
        let scope = Self {
            pass: pass.clone(),
            mode,
            block: None,
            recomputed_reads: None,
        };
        ScopeGuard {
            before: CURRENT.replace(Some(scope)),
        }
    }

    /// Returns the scope of a block whose operations are not recorded, and the reads of it and its nested blocks.
    pub(crate) fn unrecorded(&self, random: &RandomRun) -> (Self, Arc<BlockReads>) {
        let block_reads = match &self.mode {
            ReadMode::Unrecorded(block_reads) => block_reads.clone(),
            _ => Arc::default(),
        };
        (
            self.block(
                ReadMode::Unrecorded(block_reads.clone()),
                random.stream.seed,
                random.source.clone(),
            ),
            block_reads,
        )
    }

    /// Returns the scope of a block whose operations are recorded in the current graph.
    pub(crate) fn recorded(&self, random: &RandomRun) -> Self {
        self.block(self.mode.clone(), random.stream.seed, random.source.clone())
    }

    /// Returns the scope of a recomputation, with its own graph, and its reads.
    pub(crate) fn recompute(&self, seed: u64, source: NumberSource) -> (Self, Arc<Reads>) {
        let reads = Arc::<Reads>::default();
        let scope = Self {
            recomputed_reads: Some(reads.clone()),
            ..self.block(ReadMode::Recorded(Arc::default()), seed, source)
        };
        (scope, reads)
    }

    fn block(&self, mode: ReadMode, seed: u64, source: NumberSource) -> Self {
        let seeds = Arc::new(Seeds::from(seed));
        Self {
            pass: self.pass.clone(),
            mode,
            block: Some(BlockScope { seeds, source }),
            recomputed_reads: self.recomputed_reads.clone(),
        }
    }

    /// Returns the source of the random numbers of the current block.
    pub(super) fn number_source(&self) -> Option<&NumberSource> {
        self.block.as_ref().map(|block| &block.source)
    }

    /// Returns `true` if operations are recorded.
    pub(crate) fn records(&self) -> bool {
        matches!(self.mode, ReadMode::Recorded(_))
    }

    /// Returns the seed of the next block in this scope, which computes on `device`.
    pub(crate) fn next_seed(&self, device: &Device) -> u64 {
        match &self.block {
            Some(block) => block.seeds.next(),
            None => self.pass.blocks.next_seed(device),
        }
    }
}
