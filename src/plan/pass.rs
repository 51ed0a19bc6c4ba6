//! What a forward and a backward pass hold.

use crate::memory::{MemoryTimeline, RecomputedBlock};

/// A pass over so many items, as it was measured.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub(super) items: usize,
    /// With blocks that keep their activations, if that was tried.
    pub(super) kept: Option<Run>,
    /// With blocks that run twice, if there are any.
    pub(super) twice: Option<Twice>,
    /// Bytes by which a pass with some blocks of each kind was above what was expected.
    pub(super) excess: usize,
    /// The choices of blocks that were tried.
    pub(super) tried: Vec<Vec<bool>>,
}

/// The most bytes in use in a pass, with all that was there before, and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Bytes in use when it began.
    pub(super) start: usize,
    pub(super) peak: usize,
    pub(super) seconds: f64,
}

/// A pass whose blocks all run twice.
#[derive(Clone, Debug)]
pub(super) struct Twice {
    pub(super) run: Run,
    /// Bytes in use, by seconds.
    samples: Vec<(f64, usize)>,
    blocks: Vec<RecomputedBlock>,
    /// What a block holds if it keeps its activations, in parts of what the recording says.
    share: f64,
}

/// Which blocks keep their activations, and the peak then.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) keep: Vec<bool>,
    pub(super) run: Run,
}

impl Run {
    /// The pass in `timeline`, that took so many seconds.
    pub(super) fn of(timeline: &MemoryTimeline, seconds: f64) -> Self {
        let bytes = |sample: Option<&crate::memory::Sample>| sample.map_or(0, |s| s.bytes.total());
        // What the backend has kept for itself is there from the begin the next time.
        let start = bytes(timeline.samples.first());
        let grown = bytes(timeline.samples.last()).saturating_sub(start);
        Self {
            start,
            peak: timeline.peak().bytes.total() + grown,
            seconds,
        }
    }
}

impl Run {
    /// Whether the backend has kept so much for itself that a second pass tells more.
    pub(super) fn is_first(&self, timeline: &MemoryTimeline) -> bool {
        let grown = self.peak - timeline.peak().bytes.total();
        grown > (self.peak - self.start) / 100
    }
}

impl Twice {
    /// The pass in `timeline`; none if no block ran twice in it.
    pub(super) fn of(timeline: MemoryTimeline, run: Run) -> Option<Self> {
        let top = timeline.peak().bytes.total();
        let grown = run.peak - top;
        let samples = timeline.samples.iter();
        let samples = samples.map(|sample| (sample.seconds, sample.bytes.total() + grown));
        (!timeline.blocks.is_empty()).then(|| Self {
            run,
            samples: samples.collect(),
            blocks: timeline.blocks,
            share: 1.0,
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
            let held = self.blocks.iter().filter(|block| {
                keep(block.index) && (block.forward..block.backward).contains(seconds)
            });
            // What it returns is there in any case.
            let held = held.map(|block| block.activations.saturating_sub(block.outputs) as f64);
            let held = held.sum::<f64>();
            bytes + (held * share).ceil() as usize
        };
        self.samples.iter().map(at).max().unwrap_or(self.run.peak)
    }

    /// The peak of a pass whose blocks all keep their activations, as far as this one tells.
    pub(super) fn peak_of_all(&self) -> usize {
        self.peak(|_| true, self.share)
    }

    /// Learns from a pass in which all blocks kept theirs how large they are.
    pub(super) fn learn(&mut self, kept: Run) {
        let (mut low, mut high) = (0.0, 2.0);
        for _ in 0..24 {
            let middle = (low + high) / 2.0;
            match self.peak(|_| true, middle) < kept.peak {
                true => low = middle,
                false => high = middle,
            }
        }
        self.share = high;
    }

    /// The share that was learned.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Takes over a share that was learned from another number of items.
    pub(super) fn with_share(&mut self, share: f64) {
        self.share = share;
    }
}

impl Pass {
    /// As few blocks that run twice as a pass of `budget` bytes takes.
    pub(super) fn fewest_twice(&self, budget: usize) -> Option<Kept> {
        let twice = self.twice.as_ref()?;
        if twice.run.peak > budget {
            return None;
        }
        let mut keep = vec![false; twice.count()];
        let mut run = twice.run;
        // The last ones cost least: what a block keeps is needed until the backward pass has come back to it.
        for index in (0..keep.len()).rev() {
            keep[index] = true;
            let peak = twice.peak(|block| keep[block], twice.share) + self.excess;
            match peak <= budget && !self.is_beyond(&keep, budget) {
                true => run.peak = run.peak.max(peak),
                false => keep[index] = false,
            }
        }
        let count = keep.iter().filter(|keep| **keep).count();
        if let Some(kept) = self.kept {
            let part = count as f64 / keep.len() as f64;
            run.seconds += (kept.seconds - run.seconds) * part;
        }
        Some(Kept { keep, run })
    }

    /// Whether these are all blocks, and it is known that they take more.
    fn is_beyond(&self, keep: &[bool], budget: usize) -> bool {
        let all = keep.iter().all(|keep| *keep);
        all && self.kept.is_some_and(|kept| kept.peak > budget)
    }

    /// A pass without a block that runs twice.
    pub(super) fn none_twice(&self) -> Option<Kept> {
        let count = self.twice.as_ref().map_or(0, Twice::count);
        self.kept.map(|run| Kept {
            keep: vec![true; count],
            run,
        })
    }
}
