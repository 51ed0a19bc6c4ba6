use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

/// A block of a model that was [recomputed](crate::gradient_checkpointing()) in a step: how much memory that
/// saved, and how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecomputedBlock {
    /// Which of the blocks of its step it is, from 0 on, in the order of the calls. Blocks within
    /// blocks don't count.
    pub index: usize,
    /// Type of the block, and the place of its parameters in the model.
    pub name: String,
    /// When its first run began, in seconds since the start of the recording.
    pub forward: f64,
    /// When its second run began.
    pub backward: f64,
    /// Bytes that the second run had allocated when it was about to go back: what would have been held
    /// all the time in between.
    pub activations: usize,
}

/// A block whose first run has begun, for the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockRun(pub(super) usize);

impl BlockRun {
    /// One that no recording has seen.
    pub(super) fn next() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The blocks that a recording has seen, by run: index and name.
pub(super) type SeenBlocks = BTreeMap<BlockRun, (usize, String)>;

/// The moments of every block: the first run begins, the second begins, the second has been recorded.
#[derive(Debug, Default)]
pub(super) struct BlockMoments(BTreeMap<BlockRun, Vec<(f64, usize)>>);

impl BlockMoments {
    /// Notes the next moment of `run`, with the bytes in use.
    pub(super) fn note(&mut self, run: BlockRun, seconds: f64, bytes: usize) {
        self.0.entry(run).or_default().push((seconds, bytes));
    }

    /// The blocks that ran twice, in the order of their first runs.
    pub(super) fn blocks(self, mut seen: SeenBlocks) -> Vec<RecomputedBlock> {
        let blocks = self.0.into_iter().filter_map(|(run, moments)| {
            let (index, name) = seen.remove(&run)?;
            let [(forward, _), (backward, before), (_, after)] = moments[..] else {
                return None;
            };
            Some(RecomputedBlock {
                index,
                name,
                forward,
                backward,
                activations: after.saturating_sub(before),
            })
        });
        blocks.collect()
    }
}
