//! A pass whose blocks all run twice, and what it tells of those in which some don't.

use crate::memory::RecomputedBlock;

use super::expected::Expected;
use super::pass::Run;
use super::recorded::Recorded;

/// A pass whose blocks all run twice.
#[derive(Clone, Debug)]
pub(super) struct Twice {
    pub(super) run: Run,
    /// Bytes in use, by seconds.
    samples: Vec<(f64, usize)>,
    blocks: Vec<RecomputedBlock>,
    /// What a block holds if it keeps its activations, in parts of what the recording says.
    share: f64,
    /// By how much that may be more.
    fear: f64,
}

/// Blocks side by side hold more at once, the more items there are.
const FEAR: f64 = 1.5;

impl Twice {
    /// The pass in `timeline`; none if no block ran twice in it.
    pub(super) fn of(Recorded { timeline, run, .. }: &Recorded) -> Option<Self> {
        let top = timeline.peak().bytes.total();
        let grown = run.peak - top;
        let samples = timeline.samples.iter();
        let samples = samples.map(|sample| (sample.seconds, sample.bytes.total() + grown));
        (!timeline.blocks.is_empty()).then(|| Self {
            run: *run,
            samples: samples.collect(),
            blocks: timeline.blocks.clone(),
            share: 1.0,
            fear: 1.0,
        })
    }

    /// Number of blocks.
    pub(super) fn count(&self) -> usize {
        let last = self.blocks.iter().map(|block| block.index).max();
        last.map_or(0, |last| last + 1)
    }

    /// The peak if the blocks that `keep` tells hold this share of their activations.
    fn peak(&self, keep: impl Fn(usize) -> bool, share: f64) -> usize {
        let at = |(seconds, bytes): &(f64, usize)| {
            let kept = self.blocks.iter().filter(|block| keep(block.index));
            let held: usize = kept.map(|block| block.held_at(*seconds)).sum();
            bytes + (held as f64 * share).ceil() as usize
        };
        self.samples.iter().map(at).max().unwrap_or(self.run.peak)
    }

    /// The most that is feared if the blocks that `keep` tells hold their activations.
    pub(super) fn peak_of(&self, keep: impl Fn(usize) -> bool) -> usize {
        self.peak(keep, self.share * self.fear)
    }

    /// A pass in which the blocks that `keep` tells hold their activations, as far as this one tells.
    pub(super) fn expected(&self, keep: impl Fn(usize) -> bool + Copy) -> Expected {
        Expected {
            start: self.run.start,
            hoped: self.peak(keep, self.share),
            feared: self.peak_of(keep),
        }
    }

    /// Learns how large the activations are from a pass in which these blocks kept theirs.
    pub(super) fn learn(&mut self, keep: impl Fn(usize) -> bool, run: Run) {
        self.fear = 1.0;
        // It tells no more where the most was elsewhere.
        if run.peak <= self.run.peak {
            return;
        }
        let (mut low, mut high) = (0.0, 4.0);
        for _ in 0..24 {
            let middle = f64::midpoint(low, high);
            if self.peak(&keep, middle) < run.peak {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.share = high;
    }

    /// Nothing is feared of blocks that were not seen to keep their activations.
    pub(super) fn hope(&mut self) {
        self.fear = 1.0;
    }

    /// They may hold more than the recording says.
    pub(super) fn fear(&mut self) {
        self.fear = FEAR;
    }

    /// The share that was learned.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Takes over a share that was learned from another number of items.
    pub(super) fn take_over(&mut self, share: f64) {
        (self.share, self.fear) = (share.max(1.0), FEAR);
    }
}
