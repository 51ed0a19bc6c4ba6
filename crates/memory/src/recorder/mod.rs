//! The public front end: a [`MemoryRecorder`] starts and ends the single [`recording`], and other modules report to it.

mod recording;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use super::error::MemoryError;
use super::marks::{Limit, MarkLog, Meter, in_pools};
use super::process::{self, Category, ProcessLog};
use super::timeline::{MemoryTimeline, Phase};
use backburn_base::caught::finally;
use backburn_base::{is_remote, with_value};
use recording::Log;

pub use recording::{
    end_beyond_limit, enter, enter_block, enter_recomputation, enter_update, is_recording,
    note_block, note_gradient, report_use,
};

/// Returns the bytes in use on `device`; if the device does not report them, those of the process.
///
/// # Errors
///
/// If the program does not run on the [`RecordingAllocator`](super::RecordingAllocator).
pub fn live(device: &Device) -> Result<usize, MemoryError> {
    match in_pools(device) {
        Some([in_use, _]) => Ok(in_use),
        None if process::is_counting() => Ok(process::live()),
        None => Err(MemoryError::NotInstalled),
    }
}

/// Growth of the bytes in use in the process during some work.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Peak during the work.
    pub peak: usize,
    /// Bytes after it, with those of its result.
    pub left: usize,
}

/// Runs `work`. Also returns the growth of the bytes in use, if all are counted. Bytes in the pools of a device and on a
/// remote device are not counted.
pub fn growth_of<R>(device: &Device, work: impl FnOnce() -> R) -> (R, Option<Growth>) {
    let is_in_process = device.memory_pool_usage().is_none() && !is_remote(device);
    let are_counted = is_in_process && process::is_counting();
    let before = process::live();
    process::take_peak();
    let result = work();
    let left = process::live().saturating_sub(before);
    let peak = process::take_peak().saturating_sub(before);
    (result, are_counted.then_some(Growth { peak, left }))
}

/// A recorder of allocated memory, from [`start`](Self::start) to [`finish`](Self::finish).
///
/// Start it before the first step: memory that an optimizer allocated earlier counts as `rest`. A
/// fused optimizer reports phases, parameters and gradients to the recorder. A stock loop reports
/// them with these methods:
///
/// ```
/// # use backburn_memory::{MemoryRecorder, RecordingAllocator};
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
/// A recorder that is dropped without `finish` stops recording. After a panic in the recorded work,
/// `finish` returns the timeline until then.
#[derive(Debug)]
pub struct MemoryRecorder {
    _started: (),
}

impl MemoryRecorder {
    /// Starts recording the memory of the process.
    ///
    /// # Errors
    ///
    /// If the program does not run on the [`RecordingAllocator`](super::RecordingAllocator), or a recording is in progress.
    pub fn start() -> Result<Self, MemoryError> {
        if !process::is_counting() {
            return Err(MemoryError::NotInstalled);
        }
        recording::start(|| Log::Process(ProcessLog::start()))?;
        Ok(Self { _started: () })
    }

    /// Starts recording the memory of `device`, if it reports its pools, or else of the process. Pools need no recording
    /// allocator.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`start`](Self::start).
    pub fn start_on(device: &Device) -> Result<Self, MemoryError> {
        match in_pools(device) {
            None => Self::start(),
            Some(_) => Self::start_marks(Meter::Pools(Box::new(device.clone())), None),
        }
    }

    /// Starts recording the peak between two marks, without a log of events: in the pools of `device`, if it reports them, or
    /// else in the process. If the memory exceeds `limit`, the recorded work ends with a panic where a parameter is read, a
    /// block runs or the backward pass starts.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`start`](Self::start).
    #[doc(hidden)]
    pub fn start_peaks(device: &Device, limit: Option<Limit>) -> Result<Self, MemoryError> {
        let meter = match in_pools(device) {
            Some(_) => Meter::Pools(Box::new(device.clone())),
            None if process::is_counting() => Meter::Process,
            None => return Err(MemoryError::NotInstalled),
        };
        Self::start_marks(meter, limit)
    }

    fn start_marks(meter: Meter, limit: Option<Limit>) -> Result<Self, MemoryError> {
        recording::start(|| Log::Marks(MarkLog::start(meter, limit)))?;
        Ok(Self { _started: () })
    }

    /// Ends a recording of peaks. Also returns the largest growth of the pass between two checks; `None` if the limit ended it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`finish`](Self::finish).
    #[doc(hidden)]
    pub fn finish_peaks(self) -> Result<(MemoryTimeline, Option<usize>), MemoryError> {
        let stretch = recording::stretch();
        Ok((self.finish()?, stretch))
    }

    /// Ends the recording and returns its timeline.
    ///
    /// # Errors
    ///
    /// If nothing happened since the start.
    pub fn finish(self) -> Result<MemoryTimeline, MemoryError> {
        // The drop must not discard a recording: the next one may have started.
        std::mem::forget(self);
        recording::finish()
    }

    /// Reports the parameters of `model`. Repeat it after an update that does not work in place.
    pub fn parameters<M: Module>(&self, model: &M) {
        model.visit(&mut ReportTensors { gradients: None });
    }

    /// Reports the gradients of `model` after a stock backward pass.
    pub fn gradients<M: Module>(&self, gradients: &GradientsParams, model: &M) {
        model.visit(&mut ReportTensors {
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
        recording::discard();
    }
}

fn during<R>(phase: Phase, work: impl FnOnce() -> R) -> R {
    enter(phase);
    finally(work, || enter(Phase::Other))
}

struct ReportTensors<'a> {
    gradients: Option<&'a GradientsParams>,
}

impl ModuleVisitor for ReportTensors<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match self.gradients {
            None => report_use(Category::Parameter, &with_value(param).base()),
            Some(gradients) => {
                if let Some(gradient) = gradients.get::<D>(param.id) {
                    report_use(Category::Gradient, &gradient);
                }
            }
        }
    }
}
