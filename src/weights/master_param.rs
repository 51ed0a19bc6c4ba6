//! Where the value of a parameter rests and is stepped: once for all ranks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Shape, Tensor};

use super::gradient_state::{Accumulated, HeldGradient, Outcome, ParameterReport, RankGradients};
use super::placeholder::unreadable;
use crate::lock::{Level, Leveled};
use crate::memory::{self, Category};
use crate::offload::OffloadEngine;
use crate::optim::{Average, WeightAveragingConfig};
use crate::parameters::{AnyTensor, with_rank};
use crate::pass::Session;
use crate::placement::{ParamLocation, RankContext};
use crate::policy::{self, AverageExtraState};

/// The home of a parameter.
#[derive(Debug)]
pub(crate) struct MasterParam {
    pub(super) id: ParamId,
    pub(super) path: Arc<str>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) storage: Arc<MasterStorage>,
    pub(super) shape: Shape,
    /// In which the value rests.
    pub(super) dtype: DType,
    /// That of the rank which owns the parameter.
    pub(super) session: OnceLock<Arc<Session>>,
    /// How often the value may have changed.
    pub(super) version: AtomicUsize,
    pub(super) state: Leveled<State>,
}

/// What all homes at one site have in common.
#[derive(Debug)]
pub(super) struct MasterStorage {
    pub(super) location: ParamLocation,
    /// Where the gradients of micro-batches are added up.
    pub(super) sums: Device,
    /// Who moves optimizer states that wait on the host, beside the thread that computes: those of a model alone.
    pub(super) states: Option<Arc<OffloadEngine>>,
    /// Whether the backend can tell that a buffer has one owner.
    detects_sole_owner: bool,
}

impl MasterStorage {
    pub(super) fn new(location: ParamLocation, context: &RankContext) -> Self {
        let moves_states = |engine: &&Arc<OffloadEngine>| {
            engine.config.offloads_states() && context.member.is_none()
        };
        let probe = Tensor::<1>::zeros([1], &location.device).into_dispatch();
        let host = context.engine.as_ref().map(|engine| &engine.host);
        Self {
            sums: host.unwrap_or(&location.device).clone(),
            states: context.engine.as_ref().filter(moves_states).cloned(),
            detects_sole_owner: probe.can_mut(),
            location,
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// Without autodiff. An update takes it out and puts it back.
    pub(super) value: Option<AnyTensor>,
    /// What the passes before this one have left for an update.
    pub(super) accumulated: Accumulated,
    /// The average of the value, with averaging.
    pub(super) average: Option<Average>,
    /// What has become of the gradient of this pass.
    pub(super) outcome: Option<Outcome>,
    answers: RankGradients,
}

impl MasterParam {
    /// The home of `value`, which has no autodiff and goes to `storage`.
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
        let state = State {
            value: Some(value),
            accumulated: Accumulated::Nothing,
            average: None,
            outcome: None,
            answers: RankGradients::default(),
        };
        Self {
            id,
            path,
            strategy,
            storage,
            shape,
            dtype,
            session: OnceLock::new(),
            version: AtomicUsize::new(0),
            state: Leveled::new(Level::MasterParam, state),
        }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Bytes of the value where it rests.
    pub(super) fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The value, if no optimizer has taken it along.
    pub(super) fn find(&self) -> Option<AnyTensor> {
        self.state.lock().value.clone()
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// If it is gone.
    pub(super) fn value(&self) -> AnyTensor {
        let value = self.state.lock().value.clone();
        value.unwrap_or_else(|| panic!("{}", self.missing_message()))
    }

    /// Why there is no value.
    pub(super) fn missing_message(&self) -> String {
        missing_message(&self.path)
    }

    /// What stands for a value that is gone.
    pub(super) fn missing_value(&self, device: &Device) -> AnyTensor {
        let (path, shape) = (&self.path, &self.shape);
        with_rank!(shape.num_dims(), D => unreadable::<D>(missing_message, path, shape, self.dtype, device).into())
    }

    /// How often the value may have changed.
    pub(super) fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    /// Notes what a rank of a group has, and returns the gradients in the order of their sum when all have answered.
    pub(super) fn add_rank_gradient(
        &self,
        context: &RankContext,
        gradient: Option<HeldGradient>,
    ) -> Option<Vec<HeldGradient>> {
        let member = context.member.as_ref()?;
        let mut state = self.state.lock();
        let all = state.answers.set(member, gradient)?;
        Some(member.group.in_order(self.id, all))
    }

    /// Ends the pass on all ranks: it is committed, or rolled back. Only the first call reports what has happened.
    ///
    /// | outcome of the pass | left after a commit | left after a rollback |
    /// |---|---|---|
    /// | added | the sum | what was left, or an overwritten sum |
    /// | began | in the optimizer state | in the optimizer state |
    /// | updated | nothing | what was left, but for what was in the optimizer state |
    /// | vetoed | what was left, without a sum | what was left |
    /// | measured | what was left | what was left |
    pub(super) fn end(&self, committed: bool) -> ParameterReport {
        let mut state = self.state.lock();
        state.answers = RankGradients::default();
        let Some(outcome) = state.outcome.take() else {
            return ParameterReport::default();
        };
        let report = ParameterReport {
            received: true,
            updated: matches!(outcome, Outcome::Updated { .. }),
            copied: match outcome {
                Outcome::Updated { copied } => copied,
                _ => None,
            },
            vetoed: matches!(outcome, Outcome::Vetoed),
        };
        let before = std::mem::take(&mut state.accumulated);
        state.accumulated = match (outcome, before, committed) {
            (Outcome::Added(sum), _, true) => Accumulated::Sum(sum),
            // The optimizer state is not rolled back.
            (Outcome::Began, ..) => Accumulated::InOptimizerState,
            (Outcome::Updated { .. }, _, true)
            | (Outcome::Updated { .. }, Accumulated::InOptimizerState, false)
            | (Outcome::Vetoed, Accumulated::Sum(_), true) => Accumulated::Nothing,
            (_, before, _) => before,
        };
        report
    }

    /// Returns the average where the value rests, in its type; without averaging, the value.
    pub(super) fn averaged(&self) -> AnyTensor {
        let state = self.state.lock();
        let mean = state.average.as_ref().and_then(|it| it.mean(self.dtype));
        drop(state);
        mean.map_or_else(|| self.value(), AnyTensor::from)
    }

    /// Averages the value as `config` says, and lets `optimizer`, which has a place for averages, show the average in its records.
    /// The average continues from what the optimizer has loaded, else from the one before, else it starts as the value.
    pub(crate) fn keep_average(
        &self,
        config: &WeightAveragingConfig,
        optimizer: &mut ModuleOptimizer,
    ) {
        let mut state = self.state.lock();
        let average = Average::new(*config, state.average.take());
        let (rank, device) = (self.shape.num_dims(), &self.storage.location.device);
        AverageExtraState::exchange(optimizer, self.id, rank, average.state(), device);
        if let Some(value) = &state.value {
            average.start(value);
        }
        state.average = Some(average);
    }

    /// Forgets the average, which belongs to other weights.
    pub(crate) fn drop_average(&self) {
        self.state.lock().average = None;
    }

    /// What the passes so far have left for an update.
    pub(crate) fn accumulated(&self) -> Accumulated {
        self.state.lock().accumulated.clone()
    }

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    pub(crate) fn drop_sum(&self) {
        let accumulated = &mut self.state.lock().accumulated;
        if let Accumulated::Sum(_) | Accumulated::Overwritten = accumulated {
            *accumulated = Accumulated::Nothing;
        }
    }

    /// From now on this is left for an update, whatever was.
    pub(crate) fn leave(&self, accumulated: Accumulated) {
        self.state.lock().accumulated = accumulated;
    }

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    pub(crate) fn sum_is_finite(&self) -> bool {
        match self.accumulated() {
            Accumulated::Sum(sum) => policy::is_finite(&**sum),
            _ => true,
        }
    }

    /// Shows the value to a memory recorder.
    pub(crate) fn show(&self) {
        if let Some(value) = &self.state.lock().value {
            memory::show(Category::Parameter, &**value);
        }
    }

    /// Notes whether someone else holds `value`, which is then copied instead of updated in place.
    pub(super) fn note_copy(&self, value: AnyTensor) -> (AnyTensor, Option<bool>) {
        if !self.storage.detects_sole_owner {
            return (value, None);
        }
        let value = value.untyped().into_dispatch();
        let copied = !value.can_mut();
        if copied {
            log::debug!(
                "parameter `{}` is copied to be updated: something else holds its value",
                self.path
            );
        }
        (Tensor::<1>::from_dispatch(value).into(), Some(copied))
    }
}

fn missing_message(path: &str) -> String {
    format!("the value of parameter `{path}` is gone: its optimizer panicked while it wrote it")
}
