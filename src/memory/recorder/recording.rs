use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::super::block_run::{BlockRun, SeenBlock, SeenBlocks};
use super::super::device::DeviceLog;
use super::super::error::MemoryError;
use super::super::process::{self, Category, PeakLog, ProcessLog};
use super::super::timeline::{MemoryTimeline, Phase};
use crate::parameters::ModelKey;

/// Whether a recording is under way.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// The one under way.
static CURRENT: Mutex<Option<Recording>> = Mutex::new(None);

/// What has been recorded so far.
struct Recording {
    /// The recomputed blocks.
    blocks: SeenBlocks,
    /// The models of the dry runs.
    dry_runs: Vec<ModelKey>,
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

    /// Notes that a gradient of so many bytes is complete.
    fn note_gradient(&mut self, bytes: usize) {
        match self {
            Self::Process(log) => log.note_gradient(bytes),
            Self::Peaks(log) => log.note_gradient(bytes),
            Self::Device(log) => log.note_gradient(bytes),
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
    if current.is_some() {
        return Err(MemoryError::AlreadyRecording);
    }
    *current = Some(Recording {
        blocks: SeenBlocks::new(),
        dry_runs: Vec::new(),
        log: log(),
    });
    RECORDING.store(true, Ordering::SeqCst);
    Ok(())
}

/// Stops the recording, of which nothing is left.
pub(super) fn give_up() {
    let mut current = CURRENT.lock();
    RECORDING.store(false, Ordering::SeqCst);
    *current = None;
}

/// Stops the recording. Returns its timeline.
pub(super) fn finish() -> Result<MemoryTimeline, MemoryError> {
    // Locked, so that no other recording starts before this one is read.
    let mut current = CURRENT.lock();
    RECORDING.store(false, Ordering::SeqCst);
    let Recording {
        blocks,
        dry_runs,
        log,
    } = current.take().ok_or(MemoryError::Empty)?;
    Ok(MemoryTimeline {
        dry_runs,
        ..log.finish(blocks)?
    })
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

/// Ends what is recorded, with a panic that says nothing to the terminal, if it has gone beyond the limit of the recording.
pub(crate) fn end_beyond_limit() {
    if !is_recording() {
        return;
    }
    let is_beyond = match &*CURRENT.lock() {
        Some(Recording {
            log: Log::Peaks(log),
            ..
        }) => log.is_beyond(),
        _ => false,
    };
    if is_beyond {
        resume_unwind(Box::new("beyond the limit of the recording"));
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

/// A dry run of a model with this key begins, if something records.
pub(crate) fn enter_dry_run(model: impl FnOnce() -> ModelKey) {
    if is_recording() {
        let model = model();
        if let Some(recording) = &mut *CURRENT.lock() {
            recording.dry_runs.push(model);
        }
    }
}

/// The gradient of a parameter, of so many bytes, is complete, if something records.
pub(crate) fn note_gradient(bytes: usize) {
    if is_recording()
        && let Some(recording) = &mut *CURRENT.lock()
    {
        recording.log.note_gradient(bytes);
    }
}
