//! Memory of a pass in which some blocks keep their activations, computed from a recording in which all blocks were
//! recomputed.

use backburn_memory::{Phase, RecomputedBlock};

use super::concurrent_calls::ConcurrentCalls;
use super::pass_bytes::RecordedPass;

/// Bytes in use over a pass whose blocks were all recomputed.
#[derive(Clone, Debug)]
pub(super) struct ActivationCurve {
    /// Bytes in use, by seconds.
    samples: Vec<(f64, usize)>,
    /// Index of the first sample of the backward pass.
    backward: usize,
    blocks: Vec<RecomputedBlock>,
    concurrent_calls: ConcurrentCalls,
    /// Measured bytes of kept activations, in multiples of the recorded ones.
    share: f64,
}

/// Upper bound of `share`.
const MOST: f64 = 4.0;

impl ActivationCurve {
    /// Returns `None` if no block was recomputed in the pass.
    pub(super) fn of(RecordedPass { run, timeline }: &RecordedPass) -> Option<Self> {
        let grown = run.peak - timeline.peak().bytes.total();
        let samples = timeline.samples.iter();
        let is_backward = |phase: &Phase| matches!(phase, Phase::Backward);
        let mut phases = samples.clone().map(|sample| timeline.phase(sample));
        let backward = phases.position(is_backward).unwrap_or(0);
        let samples = samples.map(|sample| (sample.seconds, sample.bytes.total() + grown));
        (!timeline.blocks.is_empty()).then(|| Self {
            samples: samples.collect(),
            backward,
            blocks: timeline.blocks.clone(),
            concurrent_calls: ConcurrentCalls::of(timeline),
            share: 1.0,
        })
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> usize {
        let last = self.blocks.iter().map(|block| block.index).max();
        last.map_or(0, |last| last + 1)
    }

    /// Returns the peak bytes if the blocks in `keep` keep their activations.
    pub(super) fn peak(&self, keep: &[bool]) -> usize {
        self.bytes(keep).max().unwrap_or(0)
    }

    /// Returns the peak bytes of the backward pass, minus those at its start.
    pub(super) fn rise(&self, keep: &[bool]) -> usize {
        let mut backward = self.bytes(keep).skip(self.backward);
        let begin = backward.next().unwrap_or(0);
        backward.max().unwrap_or(0).saturating_sub(begin)
    }

    fn bytes(&self, keep: &[bool]) -> impl Iterator<Item = usize> {
        let share = self.share;
        let bytes = move |(bytes, held)| bytes + (held as f64 * share).ceil() as usize;
        self.moments(keep).map(bytes)
    }

    /// Returns the bytes in use at each sample, and the recorded activations of the blocks in `keep`.
    fn moments(&self, keep: &[bool]) -> impl Iterator<Item = (usize, usize)> {
        self.samples.iter().map(|(seconds, bytes)| {
            let blocks = self.blocks.iter();
            let is_kept = |index| keep.get(index) == Some(&true);
            let kept = blocks.filter(|block| is_kept(block.index));
            let held: usize = kept.map(|block| block.held_at(*seconds)).sum();
            (*bytes, held + self.concurrent_calls.at(*seconds, is_kept))
        })
    }

    /// Adjusts `share` to the peak of a pass.
    pub(super) fn calibrate(&mut self, keep: &[bool], peak: usize) {
        // A peak without kept activations does not depend on `share`.
        if peak > self.peak(&[]) {
            let shares = self
                .moments(keep)
                .map(|(bytes, held)| (peak - bytes) as f64 / held as f64);
            self.share = shares.fold(MOST, f64::min);
        }
    }

    /// Starts with the `share` of a pass over fewer items.
    pub(super) fn calibrate_from(&mut self, fewer: &Self) {
        self.share = fewer.share.max(1.0);
    }
}
