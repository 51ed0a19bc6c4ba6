//! Where the value of a parameter rests and is stepped: once for all ranks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::answers::{Answers, Held};
use super::averaging::{AnyAverage, Averaging};
use super::placeholder::{Likeness, gone};
use super::report::ParameterReport;
use super::stage::{Accumulated, Outcome};
use crate::layout::{Layout, Site};
use crate::memory::{self, Category};
use crate::pass::Session;
use crate::policy;

/// The home of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct Home<const D: usize> {
    pub(super) id: ParamId,
    pub(super) path: Arc<str>,
    pub(super) strategy: GradientCheckpointingStrategy,
    pub(super) site: Site,
    /// Of the value, where it rests.
    pub(super) likeness: Likeness,
    /// Where the gradients of micro-batches are added up.
    pub(super) sums: Device,
    /// Whether the backend can tell that a buffer has one owner.
    tells_owners: bool,
    /// That of the rank which owns the parameter.
    pub(super) session: OnceLock<Arc<Session>>,
    /// How often the value may have changed.
    version: AtomicUsize,
    pub(super) state: Mutex<State<D>>,
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    /// Without autodiff. An update takes it out and puts it back.
    pub(super) value: Option<Tensor<D>>,
    /// What the passes before this one have left for an update.
    pub(super) accumulated: Accumulated<D>,
    /// An average of the value, if one is asked for.
    pub(super) averaging: Option<Averaging<D>>,
    /// What has become of the gradient of this pass.
    pub(super) outcome: Option<Outcome<D>>,
    answers: Answers<D>,
}

impl<const D: usize> Home<D> {
    /// The home of `value`, which has no autodiff and goes to `site`.
    pub(super) fn new(
        id: ParamId,
        path: &str,
        value: Tensor<D>,
        strategy: GradientCheckpointingStrategy,
        site: Site,
        layout: &Layout,
    ) -> Self {
        let dtype = value.dtype();
        let value = layout.carried(path, value, &site.device, dtype);
        let value = value.unwrap_or_else(|error| panic!("{error}"));
        let probe = Tensor::<1>::zeros([1], &site.device).into_dispatch();
        Self {
            id,
            path: path.into(),
            strategy,
            likeness: Likeness::of(&value),
            sums: layout.sums_at(&site),
            site,
            tells_owners: probe.can_mut(),
            session: OnceLock::new(),
            version: AtomicUsize::new(0),
            state: Mutex::new(State {
                value: Some(value),
                accumulated: Accumulated::Nothing,
                averaging: None,
                outcome: None,
                answers: Answers::default(),
            }),
        }
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
        self.find().unwrap_or_else(|| panic!("{}", self.is_gone()))
    }

    /// Why there is no value.
    pub(super) fn is_gone(&self) -> String {
        let path = &self.path;
        format!("the value of parameter `{path}` is gone: its optimizer panicked while it wrote it")
    }

    /// What stands for a value that is gone.
    pub(super) fn gone(&self, device: &Device) -> Tensor<D> {
        gone(&self.likeness.on(device), self.is_gone())
    }

    pub(super) fn dtype(&self) -> DType {
        self.likeness.dtype
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

    /// Takes over what another home of the same parameter has accumulated.
    pub(super) fn take_over_sum(&self, from: &Self) {
        let accumulated = from.state.lock().accumulated.clone();
        self.state.lock().accumulated = accumulated.on(&self.sums);
    }

    /// Notes whether someone else holds `value`, which is then copied instead of updated in place.
    pub(super) fn tell_copy(&self, value: Tensor<D>) -> (Tensor<D>, Option<bool>) {
        if !self.tells_owners {
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

/// The home of a parameter of any rank: what is asked of all of them between passes.
pub(crate) trait AnyHome: AnyAverage {
    /// What the passes so far have left for an update.
    fn left(&self) -> Left;

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    fn drop_sum(&self);

    /// The optimizer has another state: forgets all that was accumulated, there too.
    fn forget_group(&self);

    /// The state of the optimizer holds gradients of a group that has not ended.
    fn begin_group(&self);

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    fn sum_is_finite(&self) -> bool;

    /// Shows the value to a memory recorder.
    fn show(&self);
}

/// What passes have left for an update, without the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    Sum,
    /// A sum that was overwritten by a pass which has not ended well.
    Lost,
    InOptimizerState,
}

impl<const D: usize> AnyHome for Home<D> {
    fn left(&self) -> Left {
        match &self.state.lock().accumulated {
            Accumulated::Nothing => Left::Nothing,
            Accumulated::Sum(_) => Left::Sum,
            Accumulated::Overwritten => Left::Lost,
            Accumulated::InOptimizerState => Left::InOptimizerState,
        }
    }

    fn drop_sum(&self) {
        if let Left::Sum | Left::Lost = self.left() {
            self.forget_group();
        }
    }

    fn forget_group(&self) {
        self.state.lock().accumulated = Accumulated::Nothing;
    }

    fn begin_group(&self) {
        self.state.lock().accumulated = Accumulated::InOptimizerState;
    }

    fn sum_is_finite(&self) -> bool {
        match &self.state.lock().accumulated {
            Accumulated::Sum(sum) => policy::is_finite(sum),
            _ => true,
        }
    }

    fn show(&self) {
        if let Some(value) = &self.state.lock().value {
            memory::show(Category::Parameter, value);
        }
    }
}
