//! Moments of checkpointed blocks, which become the blocks of a timeline.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::timeline::RecomputedBlock;

/// Id of a block whose first run has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRun(pub(super) usize);

impl BlockRun {
    /// Returns a new id.
    pub(super) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Recorded blocks by id.
pub(super) type SeenBlocks = BTreeMap<BlockRun, SeenBlock>;

/// Description of a block.
#[derive(Debug)]
pub(super) struct SeenBlock {
    pub(super) index: usize,
    pub(super) name: String,
    /// Bytes of its outputs.
    pub(super) outputs: usize,
}

/// Moments of every block: the start of the first run, the start of the recomputation, its end, and its backward pass (from
/// each output).
#[derive(Debug, Default)]
pub(super) struct BlockMoments(BTreeMap<BlockRun, Vec<(f64, usize)>>);

impl BlockMoments {
    /// Records the next moment of `run`, with the bytes in use.
    pub(super) fn note(&mut self, run: BlockRun, seconds: f64, bytes: usize) {
        self.0.entry(run).or_default().push((seconds, bytes));
    }

    /// Returns the approximate bytes of these records.
    pub(super) fn own_bytes(&self) -> usize {
        /// Number of moments that the first one of a block allocates space for.
        const MOMENTS: usize = 4;
        self.0.len() * (MOMENTS * size_of::<(f64, usize)>() + size_of::<(BlockRun, Vec<()>)>())
    }

    /// Returns the blocks that were recomputed, in the order of their first runs.
    pub(super) fn blocks(self, mut seen: SeenBlocks) -> Vec<RecomputedBlock> {
        let blocks = self.0.into_iter().filter_map(|(run, moments)| {
            let SeenBlock {
                index,
                name,
                outputs,
            } = seen.remove(&run)?;
            let [(forward, _), (backward, before), (_, after), (_, back), ..] = moments[..] else {
                return None;
            };
            Some(RecomputedBlock {
                index,
                name,
                forward,
                backward,
                activations: after.saturating_sub(before),
                outputs,
                tape: back.saturating_sub(after),
            })
        });
        blocks.collect()
    }
}
