use std::collections::HashMap;
use std::fmt::Debug;

use burn::module::ParamId;

use crate::offload::OffloadEngine;

/// The course of a pass: which of its blocks runs when, and which parameters each reads. Blocks within blocks
/// belong to the outer one.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockOrder {
    /// The blocks by index, in the order of their runs, first and second.
    runs: Vec<usize>,
    reads: HashMap<usize, Vec<ParamId>>,
}

impl BlockOrder {
    /// A block begins to run. Returns the number of the run.
    pub(super) fn begin(&mut self, block: usize) -> usize {
        self.runs.push(block);
        self.runs.len() - 1
    }

    /// A block has run for the first time, and read these parameters.
    pub(super) fn has_read(&mut self, block: usize, parameters: Vec<ParamId>) {
        self.reads.insert(block, parameters);
    }

    /// Whether no block has run.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What the run of this number reads, if it is of another block than the one before.
    pub(crate) fn reads_anew(&self, run: usize) -> Option<&[ParamId]> {
        let block = self.runs.get(run)?;
        let before = run.checked_sub(1).and_then(|before| self.runs.get(before));
        match before == Some(block) {
            true => None,
            false => self.reads.get(block).map(Vec::as_slice),
        }
    }

    /// What each block reads, in the order of their first runs.
    pub(crate) fn blocks(&self) -> Vec<&[ParamId]> {
        let mut blocks: Vec<_> = self.reads.iter().collect();
        blocks.sort_unstable_by_key(|(block, _)| **block);
        blocks
            .into_iter()
            .map(|(_, reads)| reads.as_slice())
            .collect()
    }
}

/// Is told when a block begins to run, so that what the next one needs can be brought.
pub(crate) trait BlockPrefetch: Debug + Send + Sync {
    /// The run of this number begins, counted from zero.
    fn begin_run(&self, run: usize);

    /// The first run of a block is over, which has read these parameters.
    fn end_first_run(&self, reads: &[ParamId]);

    /// Where what it brings comes from, if anything waits on the host.
    fn engine(&self) -> Option<&OffloadEngine>;
}
