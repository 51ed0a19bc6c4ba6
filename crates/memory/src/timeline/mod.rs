//! A recorded timeline: the bytes in use over time, the phases of the training, and the recomputed blocks. It is public, plain
//! data, independent of the recorder.

mod block;
mod bytes;
mod phase;
mod sample;

pub use block::RecomputedBlock;
pub use bytes::Bytes;
pub use phase::{Mark, Phase};
pub use sample::{CompletedGradient, Sample};

use std::fmt::{Display, Formatter};
use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::error::MemoryError;

/// Allocated memory over time, recorded by a [`MemoryRecorder`](super::MemoryRecorder).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTimeline {
    /// Samples in order: the start of every phase; for the memory of the process also the peak and each change of the total by
    /// a two-thousandth of the peak; for the pools of a device also each complete gradient, and each start and end of a block.
    pub samples: Vec<Sample>,
    /// Phases in order.
    pub marks: Vec<Mark>,
    /// Recomputed blocks, in the order of their first runs.
    #[serde(default)]
    pub blocks: Vec<RecomputedBlock>,
    /// Gradients of parameters that were complete in a backward pass of a fused optimizer, in order.
    #[serde(default)]
    pub gradients: Vec<CompletedGradient>,
    /// Number of events that did not fit in the log. If there are any, the end of the recording is missing.
    pub lost: usize,
}

/// Peak of a timeline without samples, which no recorder writes.
static NOTHING: LazyLock<Sample> = LazyLock::new(Sample::default);

impl MemoryTimeline {
    /// Writes everything as JSON.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn save_json(&self, path: impl AsRef<Path>) -> Result<(), MemoryError> {
        let path = path.as_ref();
        let text =
            serde_json::to_string(self).map_err(|error| MemoryError::unwritable(path, error))?;
        std::fs::write(path, text).map_err(|error| MemoryError::unwritable(path, error))
    }

    /// Returns the first sample with the most bytes in use, or an empty sample if there are none.
    pub fn peak(&self) -> &Sample {
        let most = self.samples.iter().map(|sample| sample.bytes.total()).max();
        let peak = self.samples.iter().find(|s| Some(s.bytes.total()) == most);
        peak.unwrap_or(&NOTHING)
    }

    /// Returns the peak of the bytes that the pools of the device reserve; `None` for the memory of the process.
    pub fn peak_reserved(&self) -> Option<usize> {
        let reserved = self.samples.iter().filter_map(|sample| sample.reserved);
        reserved.max()
    }

    /// Returns the phase of `sample`. For a sample of another timeline it may be [`Phase::Other`].
    pub fn phase(&self, sample: &Sample) -> &Phase {
        let mark = self.marks.get(sample.mark);
        mark.map_or(&Phase::Other, |mark| &mark.phase)
    }
}

/// Prints size, time and categories of the peak.
impl Display for MemoryTimeline {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let peak = self.peak();
        let bytes = peak.bytes;
        let mega = |bytes: usize| bytes as f64 / 1e6;
        writeln!(
            f,
            "peak {:.1} MB after {:.3} s, in phase: {}",
            mega(bytes.total()),
            peak.seconds,
            self.phase(peak)
        )?;
        match self.peak_reserved() {
            Some(reserved) => write!(
                f,
                "reserved at most {:.1} MB; the device does not report their use",
                mega(reserved)
            )?,
            None => write!(
                f,
                "parameters {:.1} MB, gradients {:.1} MB, optimizer state {:.1} MB, rest {:.1} MB",
                mega(bytes.parameters),
                mega(bytes.gradients),
                mega(bytes.optimizer_state),
                mega(bytes.rest)
            )?,
        }
        if self.lost > 0 {
            write!(f, "\n{} events did not fit in the log", self.lost)?;
        }
        Ok(())
    }
}
