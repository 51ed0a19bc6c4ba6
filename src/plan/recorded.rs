use std::time::Instant;

use burn::tensor::Device;

use crate::caught::catch;
use crate::error::FusedError;
use crate::memory::{MemoryRecorder, MemoryTimeline};
use crate::tap::sweep;

use super::error::PlanError;
use super::pass::Run;

/// A pass, as it was recorded.
pub(super) struct Recorded {
    pub(super) timeline: MemoryTimeline,
    pub(super) run: Run,
    /// Whether it came to its end: beyond a limit it has ended at a block.
    pub(super) is_whole: bool,
}

/// Runs and records `pass`, which ends at the next block once the process has had more than `limit` bytes.
pub(super) fn recorded(
    device: &Device,
    limit: usize,
    pass: impl FnOnce() -> Result<(), FusedError>,
) -> Result<Recorded, PlanError> {
    let recorder = MemoryRecorder::start_peaks(device, limit)?;
    let begun = Instant::now();
    let ended = catch(|| recorder.forward(pass));
    let seconds = begun.elapsed().as_secs_f64();
    let timeline = recorder.finish()?;
    let run = Run::of(&timeline, seconds);
    let is_whole = ended.is_ok();
    match ended {
        Ok(ended) => ended?,
        // Autodiff still has what the pass has kept until then.
        Err(_) if run.peak > limit => sweep(device),
        Err(panic) => panic.resume(),
    }
    Ok(Recorded {
        timeline,
        run,
        is_whole,
    })
}
