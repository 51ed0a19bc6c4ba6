//! The measured bytes of a pass.

use backburn_memory::{MemoryTimeline, Phase, Sample};

/// Seconds above which a pass is not repeated for a more precise measurement.
pub(super) const SLOW: f64 = 2.0;

/// The bytes and the time of one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassBytes {
    /// Bytes in use at the start.
    pub(super) start: usize,
    /// Peak of the bytes in use, including those at the start.
    pub(super) peak: usize,
    /// Peak of the backward pass, minus the bytes at its start.
    pub(super) rise: usize,
    /// Maximum growth between two points at which the pass can be stopped.
    pub(super) stretch: usize,
    pub(super) seconds: f64,
}

/// A completed pass with its recording.
pub(super) struct RecordedPass {
    pub(super) run: PassBytes,
    pub(super) timeline: MemoryTimeline,
}

fn bytes(sample: &Sample) -> usize {
    sample.bytes.total()
}

impl PassBytes {
    pub(super) fn of(timeline: &MemoryTimeline, stretch: usize, seconds: f64) -> Self {
        let start = timeline.samples.first().map_or(0, bytes);
        let end = timeline.samples.last().map_or(0, bytes);
        let samples = timeline.samples.iter();
        let mut backward = samples
            .skip_while(|sample| !matches!(timeline.phase(sample), Phase::Backward))
            .map(bytes);
        let begin = backward.next().unwrap_or(0);
        Self {
            start,
            // Bytes left at the end are cached by the backend and in use from the start of the next pass.
            peak: timeline.peak().bytes.total() + end.saturating_sub(start),
            rise: backward.max().unwrap_or(0).saturating_sub(begin),
            stretch,
            seconds,
        }
    }

    /// Returns the peak bytes of the pass itself.
    pub(super) fn in_pass(&self) -> usize {
        self.peak.saturating_sub(self.start)
    }
}

impl RecordedPass {
    /// Returns `true` if the pass changed the bytes in use so much that a second measurement is more precise.
    pub(super) fn warms_up(&self) -> bool {
        let end = self.timeline.samples.last().map_or(self.run.start, bytes);
        self.run.start.abs_diff(end) > self.run.in_pass() / 100
    }
}

/// Returns the number of blocks that keep their activations.
pub(super) fn count_kept(keep: &[bool]) -> usize {
    keep.iter().filter(|keep| **keep).count()
}
