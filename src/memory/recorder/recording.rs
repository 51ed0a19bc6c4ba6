use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::super::block_run::{BlockRun, SeenBlock, SeenBlocks};
use super::super::device::DeviceLog;
use super::super::error::MemoryError;
use super::super::process::{self, Category, PeakLog, ProcessLog};
use super::super::timeline::{MemoryTimeline, Phase};

/// Whether a recording is under way.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// The one under way, or one that was given up.
static CURRENT: Mutex<Option<Recording>> = Mutex::new(None);

/// What has been recorded so far.
struct Recording {
    /// The recomputed blocks.
    blocks: SeenBlocks,
    log: Log,
}

/// Whose memory is recorded.
#[allow(clippy::large_enum_variant)] // A remote device is large; there is one log.
pub(super) enum Log {
    Process(ProcessLog),
    Peaks(PeakLog),
    Device(DeviceLog),
}

impl Log {
    fn enter(&mut self, phase: Phase) {
        match self {
            Self::Process(log) => log.enter(phase),
            Self::Peaks(log) => log.enter(phase),
            Self::Device(log) => log.enter(phase),
        }
    }

    fn note_block(&mut self, run: BlockRun) {
        match self {
            Self::Process(log) => log.note_block(run),
            Self::Peaks(log) => log.note_block(run),
            Self::Device(log) => log.note_block(run),
        }
    }

    fn show<const D: usize>(&mut self, category: Category, tensor: &Tensor<D>) {
        match self {
            Self::Process(_) => process::show(category, tensor),
            Self::Peaks(_) => {}
            // Pools don't know what is in them, but a gradient that has just come may be the moment of the most.
            Self::Device(log) if category == Category::Gradient => log.sample(),
            Self::Device(_) => {}
        }
    }

    fn finish(self, blocks: SeenBlocks) -> Result<MemoryTimeline, MemoryError> {
        match self {
            Self::Process(log) => log.finish(blocks),
            Self::Peaks(log) => log.finish(blocks),
            Self::Device(log) => log.finish(blocks),
        }
    }
}

/// Starts a recording, unless one is under way.
pub(super) fn start(log: impl FnOnce() -> Log) -> Result<(), MemoryError> {
    let mut current = CURRENT.lock();
    if is_recording() {
        return Err(MemoryError::AlreadyRecording);
    }
    // Before the first event of the new one, so that an empty recording is empty.
    *current = None;
    let blocks = SeenBlocks::new();
    *current = Some(Recording { blocks, log: log() });
    RECORDING.store(true, Ordering::SeqCst);
    Ok(())
}

/// Stops the recording.
pub(super) fn stop() {
    RECORDING.store(false, Ordering::SeqCst);
    process::stop();
}

/// The timeline of the recording, which `stop` stops.
pub(super) fn finish(stop: impl FnOnce()) -> Result<MemoryTimeline, MemoryError> {
    // Locked, so that no other recording starts before this one is read.
    let mut current = CURRENT.lock();
    stop();
    let Recording { blocks, log } = current.take().ok_or(MemoryError::Empty)?;
    log.finish(blocks)
}

/// Whether a recording is under way.
pub(crate) fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Marks the begin of a phase, and so the end of the one before, if something records.
pub(crate) fn enter(phase: Phase) {
    if is_recording()
        && let Some(recording) = &mut *CURRENT.lock()
    {
        recording.log.enter(phase);
    }
}

/// Marks the begin of the update of one parameter, if something records.
pub(crate) fn enter_update(path: &str) {
    if is_recording() {
        let parameter = Some(path.to_string());
        enter(Phase::Update { parameter });
    }
}

/// The first run of a recomputed block begins: the one with this index in its step. Returns what the
/// other moments are told by, if something records.
pub(crate) fn enter_block(index: usize) -> Option<BlockRun> {
    if !is_recording() {
        return None;
    }
    let mut current = CURRENT.lock();
    let recording = current.as_mut()?;
    let run = BlockRun::next();
    let seen = SeenBlock {
        index,
        name: String::new(),
        outputs: 0,
    };
    recording.blocks.insert(run, seen);
    recording.log.note_block(run);
    Some(run)
}

/// The second run of a recomputed block begins, which returns tensors of so many bytes.
pub(crate) fn enter_second_run(run: BlockRun, name: &str, outputs: usize) {
    if let Some(recording) = &mut *CURRENT.lock() {
        if let Some(seen) = recording.blocks.get_mut(&run) {
            seen.name = name.to_string();
            seen.outputs = outputs;
        }
        recording.log.note_block(run);
    }
}

/// The second run of a recomputed block has been recorded.
pub(crate) fn leave_second_run(run: BlockRun) {
    if let Some(recording) = &mut *CURRENT.lock() {
        recording.log.note_block(run);
    }
}

/// Tells what the buffer of `tensor` is used for, if something records.
pub(crate) fn show<const D: usize>(category: Category, tensor: &Tensor<D>) {
    if is_recording()
        && let Some(recording) = &mut *CURRENT.lock()
    {
        recording.log.show(category, tensor);
    }
}
