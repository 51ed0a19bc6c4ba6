use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::super::block_run::{BlockRun, SeenBlock, SeenBlocks};
use super::super::error::MemoryError;
use super::super::marks::MarkLog;
use super::super::process::{self, Category, ProcessLog};
use super::super::timeline::{MemoryTimeline, Phase};
use backburn_base::ModelKey;

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
    /// Whether it has gone beyond its limit.
    ended: bool,
    log: Log,
}

/// How it is recorded.
pub(super) enum Log {
    /// By every allocation of the process.
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

/// Starts a recording, unless one is under way.
pub(super) fn start(log: impl FnOnce() -> Log) -> Result<(), MemoryError> {
    let mut current = CURRENT.lock();
    if current.is_some() {
        return Err(MemoryError::AlreadyRecording);
    }
    *current = Some(Recording {
        blocks: SeenBlocks::new(),
        dry_runs: Vec::new(),
        ended: false,
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
        ..
    } = current.take().ok_or(MemoryError::Empty)?;
    Ok(MemoryTimeline {
        dry_runs,
        ..match log {
            Log::Process(log) => log.finish(blocks)?,
            Log::Marks(log) => log.finish(blocks)?,
        }
    })
}

/// The most bytes that the recorded pass has taken until it could be ended; none if it was.
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

/// Whether a recording is under way.
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Tells the recording something, if there is one.
fn tell<R>(tell: impl FnOnce(&mut Recording) -> R) -> Option<R> {
    match is_recording() {
        true => CURRENT.lock().as_mut().map(tell),
        false => None,
    }
}

/// Marks the begin of a phase, and so the end of the one before, if something records.
pub fn enter(phase: Phase) {
    tell(|recording| recording.log.enter(phase));
}

/// Marks the begin of the update of one parameter, if something records.
pub fn enter_update(path: &str) {
    if is_recording() {
        let parameter = Some(path.to_string());
        enter(Phase::Update { parameter });
    }
}

/// What has ended a pass. It is no text: nobody who catches it on its way has something to say of it.
struct BeyondLimit;

/// Ends what is recorded, with a panic that says nothing to the terminal, if it has gone beyond the limit of the recording, or may
/// until it is looked at again.
pub fn end_beyond_limit() {
    let is_beyond = tell(|recording| {
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

/// The first run of a recomputed block begins: the one with this index in its step. Returns what the
/// other moments are told by, if something records.
pub fn enter_block(index: usize) -> Option<BlockRun> {
    tell(|recording| {
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

/// The second run of a recomputed block begins, which returns tensors of so many bytes.
pub fn enter_second_run(run: BlockRun, name: &str, outputs: usize) {
    tell(|recording| {
        if let Some(seen) = recording.blocks.get_mut(&run) {
            seen.name = name.to_string();
            seen.outputs = outputs;
        }
        recording.log.note_block(run);
    });
}

/// The second run of a recomputed block has been recorded.
pub fn leave_second_run(run: BlockRun) {
    tell(|recording| recording.log.note_block(run));
}

/// The second run goes back, from one of its outputs.
pub fn go_back(run: BlockRun) {
    if let Some(recording) = &mut *CURRENT.lock() {
        recording.log.note_block(run);
    }
}

/// Tells what the buffer of `tensor` is used for, if something records.
pub fn show<const D: usize>(category: Category, tensor: &Tensor<D>) {
    tell(|recording| match &mut recording.log {
        Log::Process(_) => process::show(category, tensor),
        Log::Marks(log) if category == Category::Gradient => log.show_gradient(),
        Log::Marks(_) => {}
    });
}

/// A dry run of a model with this key begins, if something records.
pub fn enter_dry_run(model: impl FnOnce() -> ModelKey) {
    if is_recording() {
        let model = model();
        tell(|recording| recording.dry_runs.push(model));
    }
}

/// The gradient of a parameter, of so many bytes, is complete, if something records.
pub fn note_gradient(bytes: usize) {
    tell(|recording| match &mut recording.log {
        Log::Process(log) => log.note_gradient(bytes),
        Log::Marks(log) => log.note_gradient(bytes),
    });
}
