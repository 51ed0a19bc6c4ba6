//! A recording without a log of events: the bytes in use at every mark, in the memory pools of a device or in the process.

use std::time::Instant;

use burn::tensor::Device;

use super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::error::MemoryError;
use super::process;
use super::timeline::{Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Sample};

/// Source of the number of bytes.
pub(crate) enum Meter {
    /// Pools of a device that reports them.
    Pools(Box<Device>),
    /// The process, with the peak between two readings.
    Process,
}

/// Limit of a recorded pass.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Number of bytes above which a recording is useless.
    pub worth: usize,
    /// Number of bytes available.
    pub budget: usize,
    /// Upper bound of the bytes that the pass allocates between two checks.
    pub stretch: usize,
    /// Upper bound of the bytes that the backward pass allocates after its start. It can't be stopped later, unless it
    /// recomputes blocks.
    pub backward: usize,
}

/// Results of the checks of the bytes in use.
#[derive(Default)]
struct Checks {
    /// Bytes at the last check.
    last: usize,
    /// Peak since the last reading.
    unread: usize,
    /// Peak of all checks.
    most: usize,
    /// Largest growth from one check to the next.
    stretch: usize,
}

/// Record of the marks. A mark takes a few bytes, independent of the number of allocations.
pub(crate) struct MarkLog {
    meter: Meter,
    limit: Option<Limit>,
    start: Instant,
    marks: Vec<Mark>,
    readings: Vec<Reading>,
    moments: BlockMoments,
    gradients: Vec<CompletedGradient>,
    checks: Checks,
    /// `true` if the backward pass starts with the next check.
    is_backward_next: bool,
}

#[derive(Clone, Copy)]
struct Reading {
    seconds: f64,
    mark: usize,
    bytes: usize,
    reserved: Option<usize>,
}

/// Returns the bytes in use and reserved in the pools of `device`, if it reports them.
pub(super) fn in_pools(device: &Device) -> Option<[usize; 2]> {
    let usage = device.memory_pool_usage()?;
    let in_use = usage.bytes_in_use + usage.bytes_padding;
    Some([in_use, usage.bytes_reserved].map(|bytes| bytes as usize))
}

impl MarkLog {
    pub(super) fn start(meter: Meter, limit: Option<Limit>) -> Self {
        let mut log = Self {
            meter,
            limit,
            start: Instant::now(),
            marks: Vec::with_capacity(8),
            readings: Vec::with_capacity(64),
            moments: BlockMoments::default(),
            gradients: Vec::new(),
            checks: Checks::default(),
            is_backward_next: false,
        };
        log.check();
        log.checks = Checks {
            last: log.checks.last,
            ..Checks::default()
        };
        log.enter(Phase::Other);
        log
    }

    /// Marks the start of a phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        // The peak until now belongs to the previous phase.
        if self.has_peaks() && !self.marks.is_empty() {
            self.read();
        }
        let seconds = self.seconds();
        self.is_backward_next = matches!(phase, Phase::Backward);
        self.marks.push(Mark { seconds, phase });
        self.read();
    }

    /// Records the next moment of a checkpointed block.
    pub(super) fn note_block(&mut self, run: BlockRun) {
        if let Some(Reading { seconds, bytes, .. }) = self.read() {
            self.moments.note(run, seconds, bytes);
        }
    }

    /// Records that a gradient is complete.
    pub(super) fn note_gradient(&mut self, bytes: usize) {
        let read = self.has_peaks().then(|| self.read()).flatten();
        let seconds = read.map_or_else(|| self.seconds(), |reading| reading.seconds);
        self.gradients.push(CompletedGradient { seconds, bytes });
    }

    /// Checks the bytes at a new gradient. This may be the peak, which pools don't report later.
    pub(super) fn show_gradient(&mut self) {
        if !self.has_peaks() {
            self.read();
        }
    }

    fn has_peaks(&self) -> bool {
        matches!(self.meter, Meter::Process)
    }

    /// Returns the seconds since the start, in whole nanoseconds, so that a JSON file reads back exactly.
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / 1e9
    }

    /// Reads the bytes in use, if the device reports them, and the peak since the last reading with a time in between, if
    /// known.
    fn read(&mut self) -> Option<Reading> {
        let reserved = self.check()?;
        let most = std::mem::take(&mut self.checks.unread);
        let own_bytes = if self.has_peaks() {
            self.own_bytes()
        } else {
            0
        };
        let [bytes, most] = [self.checks.last, most].map(|it| it.saturating_sub(own_bytes));
        let (seconds, mark) = (self.seconds(), self.marks.len() - 1);
        let reading = Reading {
            seconds,
            mark,
            bytes,
            reserved,
        };
        if self.has_peaks() {
            let last = self.readings.last().map_or(0.0, |last| last.seconds);
            let seconds = last.midpoint(seconds);
            self.readings.push(Reading {
                seconds,
                bytes: most,
                ..reading
            });
        }
        self.readings.push(reading);
        Some(reading)
    }

    /// Returns the bytes of the log itself, which do not count.
    fn own_bytes(&self) -> usize {
        self.marks.capacity() * size_of::<Mark>()
            + self.readings.capacity() * size_of::<Reading>()
            + self.gradients.capacity() * size_of::<CompletedGradient>()
            + self.moments.own_bytes()
    }

    /// Checks the bytes in use, if the device reports them. Returns the reserved bytes.
    fn check(&mut self) -> Option<Option<usize>> {
        let (live, most, reserved) = match &self.meter {
            Meter::Pools(device) => {
                let [in_use, reserved] = in_pools(device)?;
                (in_use, in_use, Some(reserved))
            }
            Meter::Process => (process::live(), process::take_peak(), None),
        };
        let checks = &mut self.checks;
        checks.stretch = checks.stretch.max(most.saturating_sub(checks.last));
        checks.unread = checks.unread.max(most);
        checks.most = checks.most.max(most);
        checks.last = live;
        Some(reserved)
    }

    /// Returns `true` if the bytes exceed the limit, or may do so before the next check.
    pub(super) fn is_beyond(&mut self) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        self.check();
        let next = match std::mem::take(&mut self.is_backward_next) {
            true => limit.backward.max(limit.stretch),
            false => limit.stretch,
        };
        let next = self.checks.last.saturating_add(next);
        self.checks.most > limit.worth || next > limit.budget
    }

    /// Returns the largest growth from one check to the next.
    pub(super) fn stretch(&self) -> usize {
        self.checks.stretch
    }

    /// Ends the log.
    pub(super) fn finish(mut self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        // The log starts with one mark.
        if self.marks.len() < 2 {
            return Err(MemoryError::Empty);
        }
        self.read();
        let samples = self.readings.into_iter().map(|reading| Sample {
            seconds: reading.seconds,
            mark: reading.mark,
            bytes: Bytes {
                unassigned: reading.bytes,
                ..Bytes::default()
            },
            reserved: reading.reserved,
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
