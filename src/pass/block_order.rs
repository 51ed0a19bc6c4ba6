use std::collections::HashMap;
use std::fmt::Debug;

use burn::module::ParamId;

use crate::offload::OffloadEngine;

/// The order in which the blocks of a pass run, and the parameters that each reads. A nested block belongs to the
/// outer one.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockOrder {
    /// The blocks by index, in the order of their runs, recomputations included.
    runs: Vec<usize>,
    reads: HashMap<usize, Vec<ParamId>>,
}

impl BlockOrder {
    /// Records the start of a run, and returns its index.
    pub(super) fn begin(&mut self, block: usize) -> usize {
        self.runs.push(block);
        self.runs.len() - 1
    }

    /// Records the parameters that the first run of a block has read.
    pub(super) fn set_reads(&mut self, block: usize, parameters: Vec<ParamId>) {
        self.reads.insert(block, parameters);
    }

    /// Returns `true` if no block has run.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the parameters that run `run` reads, if the previous run was of another block.
    pub(crate) fn new_reads(&self, run: usize) -> Option<&[ParamId]> {
        let block = self.runs.get(run)?;
        let before = run.checked_sub(1).and_then(|before| self.runs.get(before));
        match before == Some(block) {
            true => None,
            false => self.reads.get(block).map(Vec::as_slice),
        }
    }

    /// Returns the parameters that each block reads, in the order of the first runs.
    pub(crate) fn blocks(&self) -> Vec<&[ParamId]> {
        let mut blocks: Vec<_> = self.reads.iter().collect();
        blocks.sort_unstable_by_key(|(block, _)| **block);
        blocks
            .into_iter()
            .map(|(_, reads)| reads.as_slice())
            .collect()
    }
}

/// A prefetcher, which is notified when a block begins to run.
pub(crate) trait BlockPrefetch: Debug + Send + Sync {
    /// Prefetches for the run after `run`, which begins. Runs are counted from zero.
    fn begin_run(&self, run: usize);

    /// Drops copies after the first run of a block, which has read these parameters.
    fn end_first_run(&self, reads: &[ParamId]);

    /// Returns the offload engine, if anything is offloaded.
    fn engine(&self) -> Option<&OffloadEngine>;
}
