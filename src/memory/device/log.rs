use std::time::Instant;

use burn::tensor::Device;

use super::super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::super::error::MemoryError;
use super::super::timeline::{Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Pool, Sample};

/// A recording of the memory of a device: what its pools held at the begin of every phase, and
/// when gradients came.
pub(crate) struct DeviceLog {
    device: Device,
    start: Instant,
    marks: Vec<Mark>,
    samples: Vec<Sample>,
    moments: BlockMoments,
    gradients: Vec<CompletedGradient>,
}

impl DeviceLog {
    /// Starts a log; `None` if `device` does not tell what its pools hold.
    pub(crate) fn start(device: Device) -> Option<Self> {
        device.memory_pool_usage()?;
        let mut log = Self {
            device,
            start: Instant::now(),
            marks: Vec::new(),
            samples: Vec::new(),
            moments: BlockMoments::default(),
            gradients: Vec::new(),
        };
        log.enter(Phase::Other);
        Some(log)
    }

    /// Marks the begin of a phase.
    pub(crate) fn enter(&mut self, phase: Phase) {
        let seconds = self.seconds();
        self.marks.push(Mark { seconds, phase });
        self.sample();
    }

    /// Notes the next moment of a recomputed block.
    pub(crate) fn note_block(&mut self, run: BlockRun) {
        self.sample();
        if let Some(sample) = self.samples.last() {
            let bytes = sample.bytes.total();
            self.moments.note(run, sample.seconds, bytes);
        }
    }

    /// Notes that a gradient is complete.
    pub(crate) fn note_gradient(&mut self, bytes: usize) {
        let seconds = self.seconds();
        self.gradients.push(CompletedGradient { seconds, bytes });
    }

    /// Whole nanoseconds, so that JSON reads back what was written.
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / 1e9
    }

    /// Reads what the pools hold now.
    pub(crate) fn sample(&mut self) {
        let Some(usage) = self.device.memory_pool_usage() else {
            return;
        };
        self.samples.push(Sample {
            seconds: self.seconds(),
            mark: self.marks.len() - 1,
            bytes: Bytes {
                unassigned: (usage.bytes_in_use + usage.bytes_padding) as usize,
                ..Bytes::default()
            },
            reserved: Some(usage.bytes_reserved as usize),
        });
    }

    /// Ends the log.
    pub(crate) fn finish(mut self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        // One of them begins with the log.
        if self.marks.len() < 2 {
            return Err(MemoryError::Empty);
        }
        self.sample();
        let pools = self.device.memory_pool_report().unwrap_or_default();
        let pools = pools.into_iter().map(|pool| Pool {
            page_size: pool.page_size,
            pages: pool.pages,
            pages_peak: pool.pages_peak,
            largest_alloc: pool.largest_alloc,
        });
        Ok(MemoryTimeline {
            samples: self.samples,
            marks: self.marks,
            blocks: self.moments.blocks(blocks),
            gradients: self.gradients,
            pools: pools.collect(),
            ..MemoryTimeline::default()
        })
    }
}
