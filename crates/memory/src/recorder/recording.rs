use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::super::block_run::{BlockRun, SeenBlock, SeenBlocks};
use super::super::error::MemoryError;
use super::super::marks::MarkLog;
use super::super::process::{self, Category, ProcessLog};
use super::super::timeline::{MemoryTimeline, Phase};

/// `true` while a recording is in progress.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// Current recording.
static CURRENT: Mutex<Option<Recording>> = Mutex::new(None);

/// State of a recording.
struct Recording {
    /// Checkpointed blocks.
    blocks: SeenBlocks,
    /// `true` after the limit was exceeded.
    ended: bool,
    log: Log,
}

/// Log of a recording.
pub(super) enum Log {
    /// Every allocation of the process.
    Process(ProcessLog),
    Marks(MarkLog),
}

impl Log {
    fn enter(&mut self, phase: Phase) {
        match self {
            Self::Process(log) => log.enter(phase),
            Self::Marks(log) => log.enter(phase),
        }
    }

    fn note_block(&mut self, run: BlockRun) {
        match self {
            Self::Process(log) => log.note_block(run),
            Self::Marks(log) => log.note_block(run),
        }
    }
}

/// Starts a recording, unless one is in progress.
pub(super) fn start(log: impl FnOnce() -> Log) -> Result<(), MemoryError> {
    let mut current = CURRENT.lock();
    if current.is_some() {
        return Err(MemoryError::AlreadyRecording);
    }
    *current = Some(Recording {
        blocks: SeenBlocks::new(),
        ended: false,
        log: log(),
    });
    RECORDING.store(true, Ordering::SeqCst);
    Ok(())
}

/// Stops the recording and discards it.
pub(super) fn discard() {
    let mut current = CURRENT.lock();
    RECORDING.store(false, Ordering::SeqCst);
    *current = None;
}

/// Stops the recording. Returns its timeline.
pub(super) fn finish() -> Result<MemoryTimeline, MemoryError> {
    // The lock prevents another recording from starting before this one is read.
    let mut current = CURRENT.lock();
    RECORDING.store(false, Ordering::SeqCst);
    let Recording { blocks, log, .. } = current.take().ok_or(MemoryError::Empty)?;
    match log {
        Log::Process(log) => log.finish(blocks),
        Log::Marks(log) => log.finish(blocks),
    }
}

/// Returns the largest growth of the recorded pass between two checks; `None` if the limit ended it.
pub(super) fn stretch() -> Option<usize> {
    let current = CURRENT.lock();
    match current.as_ref() {
        Some(Recording {
            ended: false,
            log: Log::Marks(log),
            ..
        }) => Some(log.stretch()),
        _ => None,
    }
}

/// Returns `true` while a recording is in progress.
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Calls `report` with the recording, if there is one.
fn with_recording<R>(report: impl FnOnce(&mut Recording) -> R) -> Option<R> {
    match is_recording() {
        true => CURRENT.lock().as_mut().map(report),
        false => None,
    }
}

/// Marks the start of a phase, which ends the previous one, if a recording is in progress.
pub fn enter(phase: Phase) {
    with_recording(|recording| recording.log.enter(phase));
}

/// Marks the start of the update of one parameter, if a recording is in progress.
pub fn enter_update(path: &str) {
    if is_recording() {
        let parameter = Some(path.to_string());
        enter(Phase::Update { parameter });
    }
}

/// Panic payload that ends a pass. It has no message, because it is not an error.
struct BeyondLimit;

/// Ends the recorded work by a silent panic if it has exceeded the limit of the recording, or may do so before the next check.
pub fn end_beyond_limit() {
    let is_beyond = with_recording(|recording| {
        recording.ended |= match &mut recording.log {
            Log::Marks(log) => log.is_beyond(),
            Log::Process(_) => false,
        };
        recording.ended
    });
    if is_beyond == Some(true) {
        resume_unwind(Box::new(BeyondLimit));
    }
}

/// Reports the first run of the checkpointed block with this index in its step. Returns the id for its later moments, if a
/// recording is in progress.
pub fn enter_block(index: usize) -> Option<BlockRun> {
    with_recording(|recording| {
        let run = BlockRun::next();
        let seen = SeenBlock {
            index,
            name: String::new(),
            outputs: 0,
        };
        recording.blocks.insert(run, seen);
        recording.log.note_block(run);
        run
    })
}

/// Reports the start of a block's recomputation, and the bytes of its outputs.
pub fn enter_recomputation(run: BlockRun, name: &str, outputs: usize) {
    with_recording(|recording| {
        if let Some(seen) = recording.blocks.get_mut(&run) {
            seen.name = name.to_string();
            seen.outputs = outputs;
        }
        recording.log.note_block(run);
    });
}

/// Reports a later moment of a block: the end of its recomputation, or the start of its backward pass from one of its
/// outputs.
pub fn note_block(run: BlockRun) {
    with_recording(|recording| recording.log.note_block(run));
}

/// Reports the use of the buffer of `tensor`, if a recording is in progress.
pub fn report_use<const D: usize>(category: Category, tensor: &Tensor<D>) {
    with_recording(|recording| match &mut recording.log {
        Log::Process(_) => process::report_use(category, tensor),
        Log::Marks(log) if category == Category::Gradient => log.show_gradient(),
        Log::Marks(_) => {}
    });
}

/// Reports a complete gradient and its size in bytes, if a recording is in progress.
pub fn note_gradient(bytes: usize) {
    with_recording(|recording| match &mut recording.log {
        Log::Process(log) => log.note_gradient(bytes),
        Log::Marks(log) => log.note_gradient(bytes),
    });
}
