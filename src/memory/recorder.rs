use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::buffer::buffer;
use super::error::MemoryError;
use super::events::{self, Category};
use super::replay::replay;
use super::timeline::{MemoryTimeline, Phase};

/// The phases entered so far, in the order of their events.
static PHASES: Mutex<Vec<Phase>> = Mutex::new(Vec::new());

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
    before: usize,
}

impl MemoryRecorder {
    /// Starts recording.
    ///
    /// # Errors
    ///
    /// If the program does not run on the [`RecordingAllocator`](super::RecordingAllocator), or a
    /// recording is under way.
    pub fn start() -> Result<Self, MemoryError> {
        if events::live() == 0 {
            return Err(MemoryError::NotInstalled);
        }
        let mut phases = PHASES.lock();
        if events::is_recording() {
            return Err(MemoryError::AlreadyRecording);
        }
        // Before the first event, so that an empty recording is empty.
        *phases = Vec::with_capacity(64);
        events::start();
        drop(phases);
        let before = events::live();
        enter(Phase::Other);
        Ok(Self { before })
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// If nothing happened since the start.
    pub fn finish(self) -> Result<MemoryTimeline, MemoryError> {
        // Locked, so that no other recording starts before this one is read.
        let mut phases = PHASES.lock();
        let before = self.before;
        drop(self);
        let (events, lost) = events::read();
        let phases = std::mem::take(&mut *phases);
        replay(before, &events, phases, lost)
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
        events::stop();
    }
}

fn during<R>(phase: Phase, work: impl FnOnce() -> R) -> R {
    enter(phase);
    let result = work();
    enter(Phase::Other);
    result
}

/// Marks the begin of a phase, and so the end of the one before, if something records.
pub(crate) fn enter(phase: Phase) {
    if events::is_recording() {
        let mut phases = PHASES.lock();
        phases.push(phase);
        events::entered(phases.len() - 1);
    }
}

/// Marks the begin of the update of one parameter, if something records.
pub(crate) fn enter_update(path: &str) {
    if events::is_recording() {
        let parameter = Some(path.to_string());
        enter(Phase::Update { parameter });
    }
}

/// Tells what the buffer of `tensor` is used for, if something records.
pub(crate) fn show<const D: usize>(category: Category, tensor: &Tensor<D>) {
    if events::is_recording()
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
