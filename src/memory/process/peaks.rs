use std::time::Instant;

use super::super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::super::error::MemoryError;
use super::super::timeline::{Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Sample};
use super::counter;

/// A recording of the memory of the process without a log of events: the bytes in use at every mark, and the most between
/// two of them. It takes a few bytes for each, whatever is allocated meanwhile.
pub(crate) struct PeakLog {
    start: Instant,
    marks: Vec<Mark>,
    /// Seconds, the phase, and bytes in use.
    samples: Vec<(f64, usize, usize)>,
    moments: BlockMoments,
    gradients: Vec<CompletedGradient>,
    /// Beyond so many bytes nothing more is worth recording.
    limit: usize,
}

impl PeakLog {
    pub(crate) fn start(limit: usize) -> Self {
        let mut log = Self {
            limit,
            start: Instant::now(),
            marks: Vec::with_capacity(8),
            samples: Vec::with_capacity(64),
            moments: BlockMoments::default(),
            gradients: Vec::new(),
        };
        counter::settle();
        counter::take_peak();
        log.enter(Phase::Other);
        log
    }

    /// Marks the begin of a phase.
    pub(crate) fn enter(&mut self, phase: Phase) {
        // The bytes until now are of the phase before.
        if !self.marks.is_empty() {
            self.sample();
        }
        let seconds = self.seconds();
        self.marks.push(Mark { seconds, phase });
        self.sample();
    }

    /// Notes the next moment of a recomputed block.
    pub(crate) fn note_block(&mut self, run: BlockRun) {
        let (seconds, bytes) = self.sample();
        self.moments.note(run, seconds, bytes);
    }

    /// Notes that a gradient is complete.
    pub(crate) fn note_gradient(&mut self, bytes: usize) {
        let (seconds, _) = self.sample();
        self.gradients.push(CompletedGradient { seconds, bytes });
    }

    /// Whole nanoseconds, so that JSON reads back what was written.
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / 1e9
    }

    /// Notes the most bytes since the last sample, at a moment between, and those now.
    pub(crate) fn sample(&mut self) -> (f64, usize) {
        counter::settle();
        let (peak, now) = (counter::take_peak(), counter::live());
        let seconds = self.seconds();
        let last = self.samples.last().map_or(0.0, |(seconds, ..)| *seconds);
        let mark = self.marks.len() - 1;
        self.samples.push((last.midpoint(seconds), mark, peak));
        self.samples.push((seconds, mark, now));
        (seconds, now)
    }

    /// Whether there were more bytes than the limit.
    pub(crate) fn is_beyond(&self) -> bool {
        let recorded = self.samples.iter().map(|(.., bytes)| *bytes);
        recorded.fold(counter::peak(), usize::max) > self.limit
    }

    /// Ends the log.
    pub(crate) fn finish(mut self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        // One of them begins with the log.
        if self.marks.len() < 2 {
            return Err(MemoryError::Empty);
        }
        self.sample();
        let samples = self.samples.into_iter();
        let samples = samples.map(|(seconds, mark, bytes)| Sample {
            seconds,
            mark,
            bytes: Bytes {
                unassigned: bytes,
                ..Bytes::default()
            },
            reserved: None,
        });
        Ok(MemoryTimeline {
            samples: samples.collect(),
            marks: self.marks,
            blocks: self.moments.blocks(blocks),
            gradients: self.gradients,
            ..MemoryTimeline::default()
        })
    }
}
