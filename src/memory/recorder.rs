use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use parking_lot::{Mutex, MutexGuard};

use super::block::{BlockRun, SeenBlocks};
use super::buffer::buffer;
use super::error::MemoryError;
use super::events::{self, Category};
use super::pool::PoolLog;
use super::replay::replay;
use super::timeline::{MemoryTimeline, Phase};

/// Whether a recording is under way.
static RECORDING: AtomicBool = AtomicBool::new(false);
static LOG: Mutex<Log> = Mutex::new(Log::EMPTY);

/// What has been recorded so far.
enum Log {
    /// Of the memory of the process: beside the events of the allocator, the bytes in use before,
    /// the phases in the order of their events, and the recomputed blocks.
    Process {
        before: usize,
        phases: Vec<Phase>,
        blocks: SeenBlocks,
    },
    /// Of the memory of a device.
    Device(PoolLog),
}

impl Log {
    const EMPTY: Self = Self::Process {
        before: 0,
        phases: Vec::new(),
        blocks: SeenBlocks::new(),
    };

    fn blocks(&mut self) -> &mut SeenBlocks {
        match self {
            Self::Process { blocks, .. } => blocks,
            Self::Device(log) => &mut log.blocks,
        }
    }
}

/// Records allocated memory from [`start`](Self::start) to [`finish`](Self::finish).
///
/// Start it before the first step: what an optimizer allocated earlier counts as rest. A fused
/// optimizer tells the recorder its phases and shows it parameters and gradients by itself. A stock
/// loop does so with the methods here:
///
/// ```
/// # use backburn::memory::{MemoryRecorder, RecordingAllocator};
/// # use burn::{nn::LinearConfig, optim::{AdamConfig, GradientsParams}, tensor::{Device, Tensor}};
/// # #[global_allocator]
/// # static ALLOCATOR: RecordingAllocator = RecordingAllocator::new();
/// # let device = Device::flex().autodiff();
/// # let mut model = LinearConfig::new(64, 64).init(&device);
/// # let mut optimizer = AdamConfig::new().init();
/// # let x = Tensor::<2>::ones([8, 64], &device);
/// let recorder = MemoryRecorder::start().unwrap();
/// recorder.parameters(&model);
///
/// let loss = recorder.forward(|| model.forward(x).mean());
/// let gradients = recorder.backward(|| GradientsParams::from_grads(loss.backward(), &model));
/// recorder.gradients(&gradients, &model);
/// model = recorder.update(|| optimizer.step(1e-3, model, gradients));
/// recorder.parameters(&model);
///
/// let timeline = recorder.finish().unwrap();
/// # let _ = timeline;
/// ```
///
/// Dropped without `finish`, it stops recording. A panic in what is recorded leaves it as it is:
/// `finish` gives what was recorded until then.
#[derive(Debug)]
pub struct MemoryRecorder {
    _started: (),
}

impl MemoryRecorder {
    /// Starts recording the memory of the process.
    ///
    /// # Errors
    ///
    /// If the program does not run on the [`RecordingAllocator`](super::RecordingAllocator), or a
    /// recording is under way.
    pub fn start() -> Result<Self, MemoryError> {
        if !events::is_installed() {
            return Err(MemoryError::NotInstalled);
        }
        let mut log = LOG.lock();
        if is_recording() {
            return Err(MemoryError::AlreadyRecording);
        }
        // Before the first event, so that an empty recording is empty.
        *log = Log::EMPTY;
        let phases = Vec::with_capacity(64);
        events::start();
        let before = events::live();
        *log = Log::Process {
            before,
            phases,
            blocks: SeenBlocks::new(),
        };
        Ok(Self::started(log))
    }

    /// Starts recording the memory of `device`, if it tells what its pools hold, else that of the
    /// process. No allocator is needed for the former.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn start_on(device: &Device) -> Result<Self, MemoryError> {
        let Some(pools) = PoolLog::new(device.clone()) else {
            return Self::start();
        };
        let mut log = LOG.lock();
        if is_recording() {
            return Err(MemoryError::AlreadyRecording);
        }
        *log = Log::Device(pools);
        Ok(Self::started(log))
    }

    fn started(log: MutexGuard<'_, Log>) -> Self {
        RECORDING.store(true, Ordering::SeqCst);
        drop(log);
        enter(Phase::Other);
        Self { _started: () }
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// If nothing happened since the start.
    pub fn finish(self) -> Result<MemoryTimeline, MemoryError> {
        // Locked, so that no other recording starts before this one is read.
        let mut log = LOG.lock();
        drop(self);
        match std::mem::replace(&mut *log, Log::EMPTY) {
            Log::Process {
                before,
                phases,
                blocks,
            } => {
                let (events, lost) = events::read();
                replay(before, &events, phases, blocks, lost)
            }
            Log::Device(log) => log.finish(),
        }
    }

    /// Shows the parameters of `model`: again after an update that does not work in place.
    pub fn parameters<M: Module>(&self, model: &M) {
        model.visit(&mut Show { gradients: None });
    }

    /// Shows the gradients of `model` after a stock backward pass.
    pub fn gradients<M: Module>(&self, gradients: &GradientsParams, model: &M) {
        model.visit(&mut Show {
            gradients: Some(gradients),
        });
    }

    /// Records `work` as the forward pass.
    pub fn forward<R>(&self, work: impl FnOnce() -> R) -> R {
        during(Phase::Forward, work)
    }

    /// Records `work` as the backward pass.
    pub fn backward<R>(&self, work: impl FnOnce() -> R) -> R {
        during(Phase::Backward, work)
    }

    /// Records `work` as the update of all parameters.
    pub fn update<R>(&self, work: impl FnOnce() -> R) -> R {
        during(Phase::Update { parameter: None }, work)
    }

    /// Records `work` as validation.
    pub fn validation<R>(&self, work: impl FnOnce() -> R) -> R {
        during(Phase::Validation, work)
    }
}

impl Drop for MemoryRecorder {
    fn drop(&mut self) {
        RECORDING.store(false, Ordering::SeqCst);
        events::stop();
    }
}

fn during<R>(phase: Phase, work: impl FnOnce() -> R) -> R {
    enter(phase);
    let result = work();
    enter(Phase::Other);
    result
}

/// Whether a recording is under way.
pub(crate) fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Marks the begin of a phase, and so the end of the one before, if something records.
pub(crate) fn enter(phase: Phase) {
    if is_recording() {
        match &mut *LOG.lock() {
            Log::Process { phases, .. } => {
                phases.push(phase);
                events::entered(phases.len() - 1);
            }
            Log::Device(log) => log.enter(phase),
        }
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
    let run = BlockRun::next();
    LOG.lock().blocks().insert(run, (index, String::new()));
    note_block(run);
    Some(run)
}

/// The second run of a recomputed block begins.
pub(crate) fn enter_second_run(run: BlockRun, name: &str) {
    if let Some((_, named)) = LOG.lock().blocks().get_mut(&run) {
        *named = name.to_string();
    }
    note_block(run);
}

/// The second run of a recomputed block has been recorded.
pub(crate) fn leave_second_run(run: BlockRun) {
    note_block(run);
}

fn note_block(run: BlockRun) {
    match &mut *LOG.lock() {
        Log::Process { .. } => events::block(run.0),
        Log::Device(log) => log.note_block(run),
    }
}

/// Tells what the buffer of `tensor` is used for, if something records.
pub(crate) fn show<const D: usize>(category: Category, tensor: &Tensor<D>) {
    if is_recording()
        && let Some((address, size)) = buffer(tensor)
    {
        events::shown(category, address, size);
    }
}

struct Show<'a> {
    gradients: Option<&'a GradientsParams>,
}

impl ModuleVisitor for Show<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match self.gradients {
            None => show(Category::Parameter, &param.base()),
            Some(gradients) => {
                if let Some(gradient) = gradients.get::<D>(param.id) {
                    show(Category::Gradient, &gradient);
                }
            }
        }
    }
}
