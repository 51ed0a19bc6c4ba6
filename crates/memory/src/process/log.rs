use super::super::block_run::{BlockRun, SeenBlocks};
use super::super::error::MemoryError;
use super::super::timeline::{MemoryTimeline, Phase};
use super::counter;
use super::events::{self, Event};
use super::replay::replay;

/// A recording of the memory of the process, without its events.
pub(crate) struct ProcessLog {
    /// Bytes in use at the start.
    before: usize,
    /// Phases in the order of their events.
    phases: Vec<Phase>,
}

impl ProcessLog {
    /// Starts the log of events. No log may be active.
    pub(crate) fn start() -> Self {
        let phases = Vec::with_capacity(64);
        events::start();
        let before = counter::live();
        let mut log = Self { before, phases };
        log.enter(Phase::Other);
        log
    }

    /// Marks the start of a phase.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phases.push(phase);
        let phase = self.phases.len() - 1;
        events::note(Event::Entered { phase });
    }

    /// Records the next moment of a checkpointed block.
    pub(crate) fn note_block(&mut self, run: BlockRun) {
        events::note(Event::Block { run: run.0 });
    }

    /// Records that a gradient is complete.
    pub(crate) fn note_gradient(&mut self, bytes: usize) {
        events::note(Event::Gradient { size: bytes });
    }

    /// Reads the log of events.
    pub(crate) fn finish(mut self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        events::stop();
        replay(self.before, std::mem::take(&mut self.phases), blocks)
    }
}

impl Drop for ProcessLog {
    fn drop(&mut self) {
        events::stop();
        events::clear();
    }
}
