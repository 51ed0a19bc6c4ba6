use std::time::Instant;

use burn::tensor::Device;

use crate::caught::catch;
use crate::error::FusedError;
use crate::memory::{self, Limit, MemoryError, MemoryRecorder, MemoryTimeline};
use crate::tap::sweep;

use super::error::PlanError;
use super::pass::Run;

/// A pass, as it was recorded.
pub(super) struct Recorded {
    pub(super) timeline: MemoryTimeline,
    pub(super) run: Run,
}

/// How a recorded pass has ended.
pub(super) enum Ended {
    Well(Recorded),
    /// It went beyond its limit, or might have: so many bytes were in use by then.
    Early(usize),
}

impl Ended {
    pub(super) fn well(self) -> Option<Recorded> {
        match self {
            Self::Well(recorded) => Some(recorded),
            Self::Early(_) => None,
        }
    }
}

/// Runs and records `pass`, within `limit`.
pub(super) fn recorded(
    device: &Device,
    limit: Option<Limit>,
    pass: impl FnOnce() -> Result<(), FusedError>,
) -> Result<Ended, PlanError> {
    let recorder = MemoryRecorder::start_peaks(device, limit)?;
    let begun = Instant::now();
    let ended = catch(|| recorder.forward(pass));
    let seconds = begun.elapsed().as_secs_f64();
    let (timeline, stretch) = recorder.finish_peaks()?;
    match (ended, stretch) {
        (_, None) => {
            // Autodiff still has what the pass has kept until then.
            sweep(device);
            Ok(Ended::Early(timeline.peak().bytes.total()))
        }
        (Ok(ended), Some(stretch)) => {
            ended?;
            let run = Run::of(&timeline, stretch, seconds);
            Ok(Ended::Well(Recorded { timeline, run }))
        }
        (Err(panic), Some(_)) => panic.resume(),
    }
}

/// Bytes in use, without those of models that are gone: autodiff keeps its notes of them until a way back.
pub(super) fn held(device: &Device) -> Result<usize, MemoryError> {
    sweep(device);
    memory::live(device)
}
