//! What a pass whose blocks all run twice tells of those in which some don't.

use crate::memory::RecomputedBlock;

use super::expected::Outlook;
use super::run::Recorded;

/// The recording of a pass whose blocks all run twice.
#[derive(Clone, Debug)]
pub(super) struct Twice {
    /// Bytes in use, by seconds.
    samples: Vec<(f64, usize)>,
    blocks: Vec<RecomputedBlock>,
    /// What a block holds if it keeps its activations, in parts of what the recording says.
    share: f64,
    /// Whether that was learned from fewer items, and not here.
    is_taken_over: bool,
}

/// Blocks side by side hold more at once, the more items there are.
const FEAR: f64 = 1.5;

/// No block is taken to hold more than so many times what the recording says.
const MOST: f64 = 4.0;

impl Twice {
    /// None if no block ran twice in the pass that was recorded.
    pub(super) fn of(Recorded { run, timeline }: &Recorded) -> Option<Self> {
        let grown = run.peak - timeline.peak().bytes.total();
        let samples = timeline.samples.iter();
        let samples = samples.map(|sample| (sample.seconds, sample.bytes.total() + grown));
        (!timeline.blocks.is_empty()).then(|| Self {
            samples: samples.collect(),
            blocks: timeline.blocks.clone(),
            share: 1.0,
            is_taken_over: false,
        })
    }

    /// Number of blocks.
    pub(super) fn count(&self) -> usize {
        let last = self.blocks.iter().map(|block| block.index).max();
        last.map_or(0, |last| last + 1)
    }

    /// The peak if the blocks to `keep` hold what the recording and others have told.
    pub(super) fn hoped(&self, keep: &[bool]) -> usize {
        self.peak(keep, self.share)
    }

    /// The peak at most, as `outlook` has it.
    pub(super) fn feared(&self, keep: &[bool], outlook: Outlook) -> usize {
        let is_sure = match outlook {
            Outlook::Hoped => true,
            Outlook::Seen => !self.is_taken_over,
            Outlook::Untried => false,
        };
        self.peak(keep, self.share * if is_sure { 1.0 } else { FEAR })
    }

    /// The peak if the blocks to `keep` hold this share of their activations.
    fn peak(&self, keep: &[bool], share: f64) -> usize {
        let bytes = |(bytes, held)| bytes + (held as f64 * share).ceil() as usize;
        self.moments(keep).map(bytes).max().unwrap_or(0)
    }

    /// Bytes in use, and those that the recording says for the blocks to `keep`.
    fn moments(&self, keep: &[bool]) -> impl Iterator<Item = (usize, usize)> {
        self.samples.iter().map(|(seconds, bytes)| {
            let blocks = self.blocks.iter();
            let kept = blocks.filter(|block| keep.get(block.index) == Some(&true));
            let held = kept.map(|block| block.held_at(*seconds)).sum();
            (*bytes, held)
        })
    }

    /// Learns how large activations are from a pass with this peak, in which blocks were to `keep` theirs.
    pub(super) fn learn(&mut self, keep: &[bool], peak: usize) {
        self.is_taken_over = false;
        // It tells no more where the most was elsewhere.
        if peak > self.peak(&[], 0.0) {
            let shares = self
                .moments(keep)
                .map(|(bytes, held)| (peak - bytes) as f64 / held as f64);
            self.share = shares.fold(MOST, f64::min);
        }
    }

    /// Takes over what a pass over fewer items has learned.
    pub(super) fn take_over(&mut self, fewer: &Self) {
        self.share = fewer.share.max(1.0);
        self.is_taken_over = true;
    }
}
