//! Where the value of a parameter rests and is stepped: once for all ranks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};

use super::answers::{Answers, Held};
use super::placeholder::unreadable;
use super::report::ParameterReport;
use super::stage::{Accumulated, Outcome};
use crate::device::moved;
use crate::layout::{Layout, Site};
use crate::lock::{Level, Leveled};
use crate::offload::Placement;
use crate::optim::Average;
use crate::pass::Session;

/// The home of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct Home<const D: usize> {
    pub(super) id: ParamId,
    pub(super) path: Arc<str>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) ground: Arc<Ground>,
    pub(super) shape: [usize; D],
    /// In which the value rests.
    pub(super) dtype: DType,
    /// That of the rank which owns the parameter.
    pub(super) session: OnceLock<Arc<Session>>,
    /// How often the value may have changed.
    version: AtomicUsize,
    pub(super) state: Leveled<State<D>>,
}

/// What all homes at one site have in common.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) site: Site,
    /// Where the gradients of micro-batches are added up.
    pub(super) sums: Device,
    /// Who moves optimizer states that wait on the host, beside the thread that computes: those of a model alone.
    pub(super) states: Option<Arc<Placement>>,
    /// Whether the backend can tell that a buffer has one owner.
    tells_owners: bool,
}

impl Ground {
    pub(super) fn new(site: Site, layout: &Layout) -> Self {
        let moves_states = |placement: &&Arc<Placement>| {
            placement.config.states_wait() && layout.member().is_none()
        };
        let probe = Tensor::<1>::zeros([1], &site.device).into_dispatch();
        Self {
            sums: layout.sums_at(&site),
            states: layout.placement().filter(moves_states).cloned(),
            tells_owners: probe.can_mut(),
            site,
        }
    }
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    /// Without autodiff. An update takes it out and puts it back.
    pub(super) value: Option<Tensor<D>>,
    /// What the passes before this one have left for an update.
    pub(super) accumulated: Accumulated<Box<Tensor<D>>>,
    /// An average of the value, if one is asked for.
    pub(super) average: Option<Average<D>>,
    /// What has become of the gradient of this pass.
    pub(super) outcome: Option<Outcome<D>>,
    answers: Answers<D>,
}

impl<const D: usize> Home<D> {
    /// The home of `value`, which has no autodiff and goes to `ground`.
    pub(super) fn new(
        id: ParamId,
        path: Arc<str>,
        value: Tensor<D>,
        strategy: GradientCheckpointingStrategy,
        ground: Arc<Ground>,
        layout: &Layout,
    ) -> Self {
        let (shape, dtype) = (value.dims(), value.dtype());
        let value = layout.carried(&path, value, &ground.site.device, dtype);
        let value = value.unwrap_or_else(|error| panic!("{error}"));
        let state = State {
            value: Some(value),
            accumulated: Accumulated::Nothing,
            average: None,
            outcome: None,
            answers: Answers::default(),
        };
        Self {
            id,
            path,
            strategy,
            ground,
            shape,
            dtype,
            session: OnceLock::new(),
            version: AtomicUsize::new(0),
            state: Leveled::new(Level::Home, state),
        }
    }

    /// Where the value rests.
    pub(super) fn site(&self) -> &Site {
        &self.ground.site
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The value, if no optimizer has taken it along.
    pub(super) fn find(&self) -> Option<Tensor<D>> {
        self.state.lock().value.clone()
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// If it is gone.
    pub(super) fn value(&self) -> Tensor<D> {
        let value = self.state.lock().value.clone();
        value.unwrap_or_else(|| panic!("{}", self.is_gone()))
    }

    /// Why there is no value.
    pub(super) fn is_gone(&self) -> String {
        is_gone(&self.path)
    }

    /// What stands for a value that is gone.
    pub(super) fn gone(&self, device: &Device) -> Tensor<D> {
        unreadable(is_gone, &self.path, &self.shape.into(), self.dtype, device)
    }

    /// How often the value may have changed.
    pub(super) fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn outdate_copies(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes what a rank of a group has, and returns the gradients in the order of their sum when all have answered.
    pub(super) fn answer(
        &self,
        layout: &Layout,
        gradient: Option<Held<D>>,
    ) -> Option<Vec<Held<D>>> {
        let member = layout.member()?;
        let mut state = self.state.lock();
        let all = state.answers.give(member, gradient)?;
        Some(member.group.in_order(self.id, all))
    }

    /// The pass is over, on all ranks. If it has ended `well`, what it has accumulated counts; if not, what had been
    /// accumulated before does, where it was not overwritten. Only the first call says what has happened.
    pub(super) fn commit(&self, well: bool) -> ParameterReport {
        let mut state = self.state.lock();
        state.answers = Answers::default();
        let Some(outcome) = state.outcome.take() else {
            return ParameterReport::default();
        };
        let report = outcome.report();
        let kept = &mut state.accumulated;
        match outcome {
            Outcome::Added(sum) if well => *kept = Accumulated::Sum(sum),
            // The state of the optimizer does not come back from an update.
            Outcome::Began => *kept = Accumulated::InOptimizerState,
            Outcome::Updated { .. } if well || matches!(kept, Accumulated::InOptimizerState) => {
                *kept = Accumulated::Nothing;
            }
            Outcome::Vetoed if well && matches!(kept, Accumulated::Sum(_)) => {
                *kept = Accumulated::Nothing;
            }
            _ => {}
        }
        report
    }

    /// The average, where the value rests and in its type; the value while there is none.
    pub(super) fn averaged(&self) -> Tensor<D> {
        let mean = self.average().and_then(|it| it.mean(self.dtype));
        let mean = mean.map(|mean| moved(mean, &self.site().device));
        mean.unwrap_or_else(|| self.value())
    }

    pub(super) fn average(&self) -> Option<Average<D>> {
        self.state.lock().average.clone()
    }

    /// Notes whether someone else holds `value`, which is then copied instead of updated in place.
    pub(super) fn tell_copy(&self, value: Tensor<D>) -> (Tensor<D>, Option<bool>) {
        if !self.ground.tells_owners {
            return (value, None);
        }
        let value = value.into_dispatch();
        let copied = !value.can_mut();
        if copied {
            log::debug!(
                "parameter `{}` is copied to be updated: something else holds its value",
                self.path
            );
        }
        (Tensor::from_dispatch(value), Some(copied))
    }
}

fn is_gone(path: &str) -> String {
    format!("the value of parameter `{path}` is gone: its optimizer panicked while it wrote it")
}
