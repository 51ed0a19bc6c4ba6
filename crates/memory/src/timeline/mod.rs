//! What was recorded: the bytes in use over time, the phases of the training, and the recomputed blocks.
//! All of it is public, plain data, and knows nothing of how it was recorded.

mod block;
mod bytes;
mod check;
mod phase;
mod sample;
mod save;
mod summary;

pub use block::RecomputedBlock;
pub use bytes::Bytes;
pub use phase::{Mark, Phase};
pub use sample::{CompletedGradient, Pool, Sample};

use serde::{Deserialize, Serialize};

use backburn_base::ModelKey;

/// Allocated memory over time, as a [`MemoryRecorder`](super::MemoryRecorder) has recorded it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTimeline {
    /// In order: the begin of every phase, and, of the memory of the process, the moments at which
    /// the total had changed by a two-thousandth of the peak, and the peak.
    pub samples: Vec<Sample>,
    /// The phases in order.
    pub marks: Vec<Mark>,
    /// The recomputed blocks that ran twice, in the order of their first runs.
    #[serde(default)]
    pub blocks: Vec<RecomputedBlock>,
    /// The gradients of parameters that were complete in a backward pass of a fused optimizer, in order.
    #[serde(default)]
    pub gradients: Vec<CompletedGradient>,
    /// The models of the dry runs, in order.
    #[serde(default)]
    pub dry_runs: Vec<ModelKey>,
    /// Events that did not fit in the log; if there are any, the end of the recording is missing.
    pub lost: usize,
    /// The pools of the device; empty for the memory of the process.
    pub pools: Vec<Pool>,
}

/// The peak of a timeline without samples, which no recorder writes.
const NOTHING: Sample = Sample {
    seconds: 0.0,
    mark: 0,
    bytes: Bytes::NONE,
    reserved: None,
};

impl MemoryTimeline {
    /// The first moment with the most bytes in use; without samples there are none.
    pub fn peak(&self) -> &Sample {
        let most = self.samples.iter().map(|sample| sample.bytes.total()).max();
        let peak = self.samples.iter().find(|s| Some(s.bytes.total()) == most);
        peak.unwrap_or(&NOTHING)
    }

    /// The most bytes that the pools of the device held; `None` for the memory of the process.
    pub fn peak_reserved(&self) -> Option<usize> {
        let reserved = self.samples.iter().filter_map(|sample| sample.reserved);
        reserved.max()
    }

    /// The phase of `sample`; that of one from another timeline may be [`Phase::Other`].
    pub fn phase(&self, sample: &Sample) -> &Phase {
        let mark = self.marks.get(sample.mark);
        mark.map_or(&Phase::Other, |mark| &mark.phase)
    }
}
