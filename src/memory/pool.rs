use std::time::Instant;

use burn::tensor::Device;

use super::block::{BlockMoments, BlockRun, SeenBlocks};
use super::error::MemoryError;
use super::timeline::{Bytes, Mark, MemoryTimeline, Phase, Pool, Sample};

/// What the memory pools of a device held at the begin of every phase.
pub(super) struct PoolLog {
    device: Device,
    start: Instant,
    timeline: MemoryTimeline,
    pub(super) blocks: SeenBlocks,
    moments: BlockMoments,
}

impl PoolLog {
    /// An empty log; `None` if `device` does not tell what its pools hold.
    pub(super) fn new(device: Device) -> Option<Self> {
        device.memory_pool_usage()?;
        Some(Self {
            device,
            start: Instant::now(),
            timeline: MemoryTimeline {
                samples: Vec::new(),
                marks: Vec::new(),
                blocks: Vec::new(),
                lost: 0,
                pools: Vec::new(),
            },
            blocks: SeenBlocks::new(),
            moments: BlockMoments::default(),
        })
    }

    /// Marks the begin of a phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        let seconds = self.seconds();
        self.timeline.marks.push(Mark { seconds, phase });
        self.sample();
    }

    /// Notes the next moment of a recomputed block.
    pub(super) fn note_block(&mut self, run: BlockRun) {
        self.sample();
        if let Some(sample) = self.timeline.samples.last() {
            let bytes = sample.bytes.total();
            self.moments.note(run, sample.seconds, bytes);
        }
    }

    /// Whole nanoseconds, so that JSON reads back what was written.
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / 1e9
    }

    fn sample(&mut self) {
        let Some(usage) = self.device.memory_pool_usage() else {
            return;
        };
        self.timeline.samples.push(Sample {
            seconds: self.seconds(),
            mark: self.timeline.marks.len() - 1,
            bytes: Bytes {
                unassigned: (usage.bytes_in_use + usage.bytes_padding) as usize,
                ..Bytes::default()
            },
            reserved: Some(usage.bytes_reserved as usize),
        });
    }

    /// Ends the log.
    pub(super) fn finish(mut self) -> Result<MemoryTimeline, MemoryError> {
        // The recorder enters one phase by itself.
        if self.timeline.marks.len() < 2 {
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
        self.timeline.pools = pools.collect();
        self.timeline.blocks = self.moments.blocks(self.blocks);
        Ok(self.timeline)
    }
}
