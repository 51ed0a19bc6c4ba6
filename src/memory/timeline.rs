use std::fmt::{Display, Formatter};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::block::RecomputedBlock;
use super::error::MemoryError;

/// Bytes in use by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Buffers of parameters.
    pub parameters: usize,
    /// Buffers of finished gradients, from their birth on.
    pub gradients: usize,
    /// What updates have allocated and not freed.
    pub optimizer_state: usize,
    /// Everything else: activations, intermediates, bookkeeping, data, what was there before.
    pub rest: usize,
    /// In use on a device that does not tell for what.
    pub unassigned: usize,
}

impl Bytes {
    /// The sum of the categories: all bytes in use.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer_state + self.rest + self.unassigned
    }
}

/// What a program does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// None of the others.
    Other,
    /// The forward pass.
    Forward,
    /// The backward pass, but for the updates in it. Where a `TrainStep` of Burn's training runs
    /// both, it begins with the first finished gradient.
    Backward,
    /// An update.
    Update {
        /// Path of the parameter; `None` if all are updated at once, as stock Burn does.
        parameter: Option<String>,
    },
    /// Validation.
    Validation,
}

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other => f.write_str("other"),
            Self::Forward => f.write_str("forward"),
            Self::Backward => f.write_str("backward"),
            Self::Update { parameter: None } => f.write_str("update"),
            Self::Update {
                parameter: Some(path),
            } => write!(f, "update of {path}"),
            Self::Validation => f.write_str("validation"),
        }
    }
}

/// The begin of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// The phase that begins.
    pub phase: Phase,
}

/// The bytes in use at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the recording.
    pub seconds: f64,
    /// Index of the phase in [`MemoryTimeline::marks`].
    pub mark: usize,
    /// The bytes in use.
    pub bytes: Bytes,
    /// The bytes that the pools of the device hold, those in use among them; `None` for the memory
    /// of the process.
    pub reserved: Option<usize>,
}

/// A memory pool of a device at the end of the recording, as Burn's `Device::memory_pool_report`
/// tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Bytes of one page.
    pub page_size: u64,
    /// Pages held.
    pub pages: u64,
    /// The most pages held at once since the program began.
    pub pages_peak: u64,
    /// Bytes of the largest allocation.
    pub largest_alloc: u64,
}

/// Allocated memory over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryTimeline {
    /// In order: the begin of every phase, and, of the memory of the process, the moments at which
    /// the total had changed by a two-thousandth of the peak, and the peak.
    pub samples: Vec<Sample>,
    /// The phases in order.
    pub marks: Vec<Mark>,
    /// The recomputed blocks that ran twice, in the order of their first runs.
    #[serde(default)]
    pub blocks: Vec<RecomputedBlock>,
    /// Events that did not fit in the log; if there are any, the end of the recording is missing.
    pub lost: usize,
    /// The pools of the device; empty for the memory of the process.
    pub pools: Vec<Pool>,
}

impl MemoryTimeline {
    /// The first moment with the most bytes in use.
    pub fn peak(&self) -> &Sample {
        let most = self.samples.iter().map(|sample| sample.bytes.total()).max();
        let peak = self.samples.iter().find(|s| Some(s.bytes.total()) == most);
        peak.expect("a timeline has samples")
    }

    /// The most bytes that the pools of the device held; `None` for the memory of the process.
    pub fn peak_reserved(&self) -> Option<usize> {
        let reserved = self.samples.iter().filter_map(|sample| sample.reserved);
        reserved.max()
    }

    /// The phase of `sample`.
    pub fn phase(&self, sample: &Sample) -> &Phase {
        &self.marks[sample.mark].phase
    }

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

    /// Writes the samples as CSV: seconds, phase, the bytes of each category, and the reserved ones.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn save_csv(&self, path: impl AsRef<Path>) -> Result<(), MemoryError> {
        let path = path.as_ref();
        let write = || -> Result<(), csv::Error> {
            let mut file = csv::Writer::from_path(path)?;
            file.write_record([
                "seconds",
                "phase",
                "parameters",
                "gradients",
                "optimizer_state",
                "rest",
                "unassigned",
                "reserved",
            ])?;
            for sample in &self.samples {
                let Bytes {
                    parameters,
                    gradients,
                    optimizer_state,
                    rest,
                    unassigned,
                } = sample.bytes;
                let bytes = [parameters, gradients, optimizer_state, rest, unassigned];
                let start = [sample.seconds.to_string(), self.phase(sample).to_string()];
                let reserved = sample.reserved.map(|bytes| bytes.to_string());
                let row = start.into_iter().chain(bytes.map(|b| b.to_string()));
                file.write_record(row.chain([reserved.unwrap_or_default()]))?;
            }
            file.flush()?;
            Ok(())
        };
        write().map_err(|error| MemoryError::unwritable(path, error))
    }
}

/// The peak: how much, when, of what.
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
                "reserved at most {:.1} MB; the device does not tell for what",
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
        for pool in self.pools.iter().filter(|pool| pool.pages_peak > 0) {
            write!(
                f,
                "\npool of pages of {:.1} MB: {} held, {} at most, largest allocation {:.1} MB",
                pool.page_size as f64 / 1e6,
                pool.pages,
                pool.pages_peak,
                pool.largest_alloc as f64 / 1e6
            )?;
        }
        if self.lost > 0 {
            write!(f, "\n{} events did not fit in the log", self.lost)?;
        }
        Ok(())
    }
}
