//! One pass, recorded.

use std::time::Instant;

use burn::tensor::Device;

use crate::caught::catch;
use crate::error::FusedError;
use crate::memory::{Limit, MemoryRecorder, MemoryTimeline, Phase, Sample};
use crate::tap::sweep;

use super::error::PlanError;

/// The most bytes in use in a pass, with all that was there before, and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Bytes in use when it began.
    pub(super) start: usize,
    pub(super) peak: usize,
    /// The most until the backward pass began.
    pub(super) forward: usize,
    /// The most until it could be ended, over those before.
    pub(super) stretch: usize,
    pub(super) seconds: f64,
}

/// A pass that has come to its end.
pub(super) struct Recorded {
    pub(super) run: Run,
    pub(super) timeline: MemoryTimeline,
}

/// A pass went beyond its limit, or might have: so many bytes were in use when it was ended.
pub(super) struct EndedEarly(pub(super) usize);

impl Run {
    fn of(timeline: &MemoryTimeline, stretch: usize, seconds: f64) -> Self {
        let start = timeline.samples.first().map_or(0, bytes);
        let mut marks = timeline.marks.iter();
        let backward = marks.position(|mark| mark.phase == Phase::Backward);
        let samples = timeline.samples.iter();
        let forward = samples.filter(|sample| Some(sample.mark) < backward);
        let end = timeline.samples.last().map_or(0, bytes);
        Self {
            start,
            // What the backend has kept for itself is there from the begin the next time.
            peak: timeline.peak().bytes.total() + end.saturating_sub(start),
            forward: forward.map(bytes).max().unwrap_or(start),
            stretch,
            seconds,
        }
    }

    /// The most bytes of the pass itself.
    pub(super) fn in_pass(&self) -> usize {
        self.peak.saturating_sub(self.start)
    }
}

fn bytes(sample: &Sample) -> usize {
    sample.bytes.total()
}

impl Recorded {
    /// Whether the pass has left so much behind, or taken along, that a second one tells more.
    pub(super) fn warms_up(&self) -> bool {
        let end = self.timeline.samples.last().map_or(self.run.start, bytes);
        self.run.start.abs_diff(end) > self.run.in_pass() / 100
    }
}

/// Runs and records `pass`, within `limit`.
pub(super) fn recorded(
    device: &Device,
    limit: Option<Limit>,
    pass: impl FnOnce() -> Result<(), FusedError>,
) -> Result<Result<Recorded, EndedEarly>, PlanError> {
    let recorder = MemoryRecorder::start_peaks(device, limit)?;
    let begun = Instant::now();
    let ended = catch(|| recorder.forward(pass));
    let seconds = begun.elapsed().as_secs_f64();
    let (timeline, stretch) = recorder.finish_peaks()?;
    match (ended, stretch) {
        (_, None) => {
            // Autodiff still has what the pass has kept until then.
            sweep(device);
            Ok(Err(EndedEarly(timeline.peak().bytes.total())))
        }
        (Ok(ended), Some(stretch)) => {
            ended?;
            let run = Run::of(&timeline, stretch, seconds);
            Ok(Ok(Recorded { run, timeline }))
        }
        (Err(panic), Some(_)) => panic.resume(),
    }
}
