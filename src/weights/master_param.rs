//! The master copy of a parameter: stored and stepped once for all ranks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use backburn_base::{AnyTensor, with_dims};
use backburn_optim::{Average, WeightAveragingConfig};
use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};

use super::gradient_state::{Accumulated, Outcome, ParameterReport, RankGradients};
use super::placeholder::unreadable;
use crate::offload::OffloadEngine;
use crate::pass::Session;
use crate::placement::{ParamLocation, RankContext};
use crate::policy;
use crate::shared_optimizer::{ExtraState, average_id};
use crate::threads::lock::{Level, Leveled, leveled};

/// The authoritative copy of a parameter.
#[derive(Debug)]
pub(crate) struct MasterParam {
    pub(super) id: ParamId,
    pub(super) path: Arc<str>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) storage: Arc<MasterStorage>,
    pub(super) shape: Shape,
    /// The storage type.
    pub(super) dtype: DType,
    /// The session of the owner.
    pub(super) session: OnceLock<Arc<Session>>,
    /// The number of operations of autodiff in the process when the value may last have changed.
    pub(super) version: AtomicU64,
    pub(super) state: Leveled<MasterState>,
}

/// The storage shared by all masters at one location.
#[derive(Debug)]
pub(super) struct MasterStorage {
    pub(super) location: ParamLocation,
    /// The device that accumulates the gradients of micro-batches.
    pub(super) accumulation_device: Device,
    /// Background workers for offloaded optimizer states (single device only).
    pub(super) state_offload: Option<Arc<OffloadEngine>>,
    /// `true` if the backend detects that a buffer has one owner.
    pub(super) detects_sole_owner: bool,
}

impl MasterStorage {
    pub(super) fn new(location: ParamLocation, context: &RankContext) -> Self {
        let moves_states = |engine: &&Arc<OffloadEngine>| {
            engine.config.offloads_states() && context.membership.is_none()
        };
        let probe = Tensor::<1>::zeros([1], &location.device).into_dispatch();
        let host = context.engine.as_ref().map(|engine| &engine.host);
        Self {
            accumulation_device: host.unwrap_or(&location.device).clone(),
            state_offload: context.engine.as_ref().filter(moves_states).cloned(),
            detects_sole_owner: probe.can_mut(),
            location,
        }
    }
}

#[derive(Debug)]
pub(super) struct MasterState {
    /// The value, without autodiff. An update takes it out and puts it back.
    pub(super) value: Option<AnyTensor>,
    /// The gradients that earlier passes have accumulated.
    pub(super) accumulated: Accumulated,
    /// The average of the value, if averaging is on.
    pub(super) average: Option<Average>,
    /// The outcome of the gradient in this pass.
    pub(super) outcome: Option<Outcome>,
    pub(super) rank_gradients: RankGradients,
}

impl MasterParam {
    /// Creates the master of `value`, which has no autodiff, in `storage`.
    pub(super) fn new(
        id: ParamId,
        path: Arc<str>,
        value: AnyTensor,
        strategy: GradientCheckpointingStrategy,
        storage: Arc<MasterStorage>,
        context: &RankContext,
    ) -> Self {
        let (shape, dtype) = (value.shape(), value.dtype());
        let value = context.transfer(&path, value, &storage.location.device, dtype);
        let value = value.unwrap_or_else(|error| panic!("{error}"));
        let state = MasterState {
            value: Some(value),
            accumulated: Accumulated::Nothing,
            average: None,
            outcome: None,
            rank_gradients: RankGradients::default(),
        };
        Self {
            id,
            path,
            strategy,
            storage,
            shape,
            dtype,
            session: OnceLock::new(),
            version: AtomicU64::new(0),
            state: leveled(Level::MasterParam, state),
        }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Returns the bytes of the stored value.
    pub(super) fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Returns the bytes of the value if it has another owner, so that the next update copies it.
    pub(super) fn shared_bytes(&self) -> usize {
        let mut state = self.state.lock();
        let Some(value) = state.value.take() else {
            return 0;
        };
        let value = value.0.into_dispatch();
        let is_shared = self.storage.detects_sole_owner && !value.can_mut();
        state.value = Some(AnyTensor(Tensor::from_dispatch(value)));
        self.bytes() * usize::from(is_shared)
    }

    /// Returns the value, if no optimizer has dropped it in a panic.
    pub(crate) fn find(&self) -> Option<AnyTensor> {
        self.state.lock().value.clone()
    }

    /// Returns the value.
    ///
    /// # Panics
    ///
    /// Panics if an optimizer has dropped the value in a panic.
    pub(super) fn value(&self) -> AnyTensor {
        let value = self.state.lock().value.clone();
        value.unwrap_or_else(|| panic!("{}", missing_message(&self.path)))
    }

    /// Returns a placeholder for a missing value.
    pub(super) fn missing_value(&self, device: &Device) -> AnyTensor {
        let (path, shape) = (&self.path, &self.shape);
        with_dims!(shape.num_dims(), D => unreadable::<D>(missing_message, path, shape, self.dtype, device).into())
    }

    /// Returns the version of the value.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Ends the pass, on all ranks: commits or rolls back the accumulated gradients. An updated value and its optimizer state
    /// stay. Only the first call returns a report.
    ///
    /// | outcome of the pass | accumulated after a commit | accumulated after a rollback |
    /// |---|---|---|
    /// | added | the sum | as before the pass, or an overwritten sum |
    /// | added to the state | in the optimizer state | in the optimizer state |
    /// | updated | nothing | as before the pass, without gradients in the optimizer state |
    /// | vetoed | as before the pass, without a sum | as before the pass |
    /// | measured | as before the pass | as before the pass |
    pub(super) fn end(&self, commits: bool) -> ParameterReport {
        let mut state = self.state.lock();
        state.rank_gradients = RankGradients::default();
        let Some(outcome) = state.outcome.take() else {
            return ParameterReport::default();
        };
        let report = match outcome {
            Outcome::Updated { copied } => ParameterReport::Updated { copied },
            Outcome::Vetoed => ParameterReport::Vetoed,
            Outcome::Added(_) | Outcome::Measured | Outcome::AddedToState => {
                ParameterReport::Received
            }
        };
        let before = std::mem::take(&mut state.accumulated);
        state.accumulated = match (outcome, before, commits) {
            (Outcome::Added(sum), _, true) => Accumulated::Sum(sum),
            // The optimizer state is not rolled back.
            (Outcome::AddedToState, ..) => Accumulated::InOptimizerState,
            (Outcome::Updated { .. }, _, true)
            | (Outcome::Updated { .. }, Accumulated::InOptimizerState, false)
            | (Outcome::Vetoed, Accumulated::Sum(_), true) => Accumulated::Nothing,
            (_, before, _) => before,
        };
        report
    }

    /// Returns the average at the location and in the type of the value; without averaging, the value.
    pub(super) fn averaged(&self) -> AnyTensor {
        let state = self.state.lock();
        let mean = state.average.as_ref().and_then(|it| it.mean(self.dtype));
        drop(state);
        mean.map_or_else(|| self.value(), AnyTensor::from)
    }

    /// Keeps an average by `config` in the extra state of `optimizer`. It continues the loaded average, otherwise the previous one,
    /// otherwise it starts from the value at [`start_average`](Self::start_average).
    pub(crate) fn keep_average(
        &self,
        config: &WeightAveragingConfig,
        optimizer: &mut ModuleOptimizer,
    ) {
        let mut state = self.state.lock();
        let average = Average::new(*config, state.average.take());
        let (id, dims) = (average_id(self.id), self.shape.num_dims());
        let average = state.average.insert(average);
        let device = &self.storage.location.device;
        average.state().take_over(optimizer, id, dims, device);
    }

    /// Starts the average, or moves a loaded average to the device of the value.
    pub(crate) fn start_average(&self) {
        let state = self.state.lock();
        if let (Some(value), Some(average)) = (&state.value, &state.average) {
            average.start(value);
        }
    }

    /// Drops the average, which belongs to other weights.
    pub(crate) fn drop_average(&self) {
        self.state.lock().average = None;
    }

    /// Returns what earlier passes have accumulated for an update.
    pub(crate) fn accumulated(&self) -> Accumulated {
        self.state.lock().accumulated.clone()
    }

    /// Drops the sum of gradients. Gradients in the optimizer state stay.
    pub(crate) fn drop_sum(&self) {
        let accumulated = &mut self.state.lock().accumulated;
        if let Accumulated::Sum(_) | Accumulated::Overwritten = accumulated {
            *accumulated = Accumulated::Nothing;
        }
    }

    /// Replaces the gradients that are accumulated for an update.
    pub(crate) fn set_accumulated(&self, accumulated: Accumulated) {
        self.state.lock().accumulated = accumulated;
    }

    /// Returns `true` if there is no sum, or if all its elements are finite in the type of the parameter, in which a step applies it.
    /// Waits for the device.
    pub(crate) fn sum_is_finite(&self) -> bool {
        match self.accumulated() {
            Accumulated::Sum(sum) => policy::is_finite(&*(*sum).in_type(self.dtype)),
            _ => true,
        }
    }
}

/// Returns the message for a missing value.
pub(super) fn missing_message(path: &str) -> String {
    format!(
        "the value of parameter `{path}` is lost: the optimizer panicked while it wrote the value. Resume from the last checkpoint"
    )
}
