//! A recording without a log of events: the bytes in use at every mark, in the memory pools of a device or of the process.

use std::time::Instant;

use burn::tensor::Device;

use super::block_run::{BlockMoments, BlockRun, SeenBlocks};
use super::error::MemoryError;
use super::process;
use super::timeline::{Bytes, CompletedGradient, Mark, MemoryTimeline, Phase, Pool, Sample};

/// Where bytes are counted.
pub(crate) enum Meter {
    /// In the pools of a device, which tells what they hold.
    Pools(Box<Device>),
    /// In the process, the most between two readings, too.
    Process,
}

/// How far a recorded pass may go.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Beyond so many bytes nothing more is worth recording.
    pub worth: usize,
    /// So many there are.
    pub budget: usize,
    /// The most of them that the pass may take from one look at it to the next.
    pub stretch: usize,
    /// The most that the backward pass may take over what is in use when it begins: it can't be ended later, unless it recomputes blocks.
    pub backward: usize,
}

/// What looks at the bytes in use have told.
#[derive(Default)]
struct Looks {
    /// Bytes at the last one.
    last: usize,
    /// The most since the last reading.
    unread: usize,
    /// The most of all.
    most: usize,
    /// The most from one to the next, over those at the first.
    stretch: usize,
}

/// What has been recorded: a few bytes for each mark, whatever is allocated meanwhile.
pub(crate) struct MarkLog {
    meter: Meter,
    limit: Option<Limit>,
    start: Instant,
    marks: Vec<Mark>,
    readings: Vec<Reading>,
    moments: BlockMoments,
    gradients: Vec<CompletedGradient>,
    looks: Looks,
    /// The backward pass begins with the next look.
    is_backward_next: bool,
}

#[derive(Clone, Copy)]
struct Reading {
    seconds: f64,
    mark: usize,
    bytes: usize,
    reserved: Option<usize>,
}

/// The bytes in the pools of `device` that are in use, and those that they reserve, if it tells.
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
            looks: Looks::default(),
            is_backward_next: false,
        };
        log.look();
        log.looks = Looks {
            last: log.looks.last,
            ..Looks::default()
        };
        log.enter(Phase::Other);
        log
    }

    /// Marks the begin of a phase.
    pub(super) fn enter(&mut self, phase: Phase) {
        // The most until now is of the phase before.
        if self.has_peaks() && !self.marks.is_empty() {
            self.read();
        }
        let seconds = self.seconds();
        self.is_backward_next = matches!(phase, Phase::Backward);
        self.marks.push(Mark { seconds, phase });
        self.read();
    }

    /// Notes the next moment of a recomputed block.
    pub(super) fn note_block(&mut self, run: BlockRun) {
        if let Some(Reading { seconds, bytes, .. }) = self.read() {
            self.moments.note(run, seconds, bytes);
        }
    }

    /// Notes that a gradient is complete.
    pub(super) fn note_gradient(&mut self, bytes: usize) {
        let read = self.has_peaks().then(|| self.read()).flatten();
        let seconds = read.map_or_else(|| self.seconds(), |reading| reading.seconds);
        self.gradients.push(CompletedGradient { seconds, bytes });
    }

    /// A gradient has just come: that may be the moment of the most, which pools don't tell afterwards.
    pub(super) fn show_gradient(&mut self) {
        if !self.has_peaks() {
            self.read();
        }
    }

    fn has_peaks(&self) -> bool {
        matches!(self.meter, Meter::Process)
    }

    /// Whole nanoseconds, so that JSON reads back what was written.
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_nanos() as f64 / 1e9
    }

    /// Reads the bytes in use now, if the device tells, and the most since the last reading, if they are known, at a moment between.
    fn read(&mut self) -> Option<Reading> {
        let reserved = self.look()?;
        let most = std::mem::take(&mut self.looks.unread);
        let own_bytes = if self.has_peaks() {
            self.own_bytes()
        } else {
            0
        };
        let [bytes, most] = [self.looks.last, most].map(|it| it.saturating_sub(own_bytes));
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

    /// Bytes of the log itself, which nobody wants to know.
    fn own_bytes(&self) -> usize {
        self.marks.capacity() * size_of::<Mark>()
            + self.readings.capacity() * size_of::<Reading>()
            + self.gradients.capacity() * size_of::<CompletedGradient>()
            + self.moments.own_bytes()
    }

    /// Looks at the bytes in use, if the device tells. Returns those that it reserves.
    fn look(&mut self) -> Option<Option<usize>> {
        let (live, most, reserved) = match &self.meter {
            Meter::Pools(device) => {
                let [in_use, reserved] = in_pools(device)?;
                (in_use, in_use, Some(reserved))
            }
            Meter::Process => (process::live(), process::take_peak(), None),
        };
        let looks = &mut self.looks;
        looks.stretch = looks.stretch.max(most.saturating_sub(looks.last));
        looks.unread = looks.unread.max(most);
        looks.most = looks.most.max(most);
        looks.last = live;
        Some(reserved)
    }

    /// Whether there were, or may be until the next look, more bytes than the limit.
    pub(super) fn is_beyond(&mut self) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        self.look();
        let next = match std::mem::take(&mut self.is_backward_next) {
            true => limit.backward.max(limit.stretch),
            false => limit.stretch,
        };
        let next = self.looks.last.saturating_add(next);
        self.looks.most > limit.worth || next > limit.budget
    }

    /// The most bytes from one look to the next, over those at the first.
    pub(super) fn stretch(&self) -> usize {
        self.looks.stretch
    }

    /// Ends the log.
    pub(super) fn finish(mut self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        // One of them begins with the log.
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
        let pools = match &self.meter {
            Meter::Pools(device) => device.memory_pool_report().unwrap_or_default(),
            Meter::Process => Vec::new(),
        };
        let pools = pools.into_iter().map(|pool| Pool {
            page_size: pool.page_size,
            pages: pool.pages,
            pages_peak: pool.pages_peak,
            largest_alloc: pool.largest_alloc,
        });
        Ok(MemoryTimeline {
            samples: samples.collect(),
            marks: self.marks,
            blocks: self.moments.blocks(blocks),
            gradients: self.gradients,
            pools: pools.collect(),
            ..MemoryTimeline::default()
        })
    }
}
