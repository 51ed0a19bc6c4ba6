//! From the moments of a recomputed block, as they are recorded, to what the timeline says of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::timeline::RecomputedBlock;

/// A block whose first run has begun, for the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRun(pub(super) usize);

impl BlockRun {
    /// One that no recording has seen.
    pub(super) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The blocks that a recording has seen, by run.
pub(super) type SeenBlocks = BTreeMap<BlockRun, SeenBlock>;

/// What a block has told of itself.
#[derive(Debug)]
pub(super) struct SeenBlock {
    pub(super) index: usize,
    pub(super) name: String,
    /// Bytes of its outputs.
    pub(super) outputs: usize,
}

/// The moments of every block: the first run begins, the second begins, the second has been recorded, it goes back (from each output).
#[derive(Debug, Default)]
pub(super) struct BlockMoments(BTreeMap<BlockRun, Vec<(f64, usize)>>);

impl BlockMoments {
    /// Notes the next moment of `run`, with the bytes in use.
    pub(super) fn note(&mut self, run: BlockRun, seconds: f64, bytes: usize) {
        self.0.entry(run).or_default().push((seconds, bytes));
    }

    /// Bytes of the notes, about.
    pub(super) fn own_bytes(&self) -> usize {
        /// The first moments of a block make room for so many.
        const MOMENTS: usize = 4;
        self.0.len() * (MOMENTS * size_of::<(f64, usize)>() + size_of::<(BlockRun, Vec<()>)>())
    }

    /// The blocks that ran twice, in the order of their first runs.
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
