use std::any::Any;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::module::ParamId;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::{Slot, SlotReport};
use crate::memory::{self, Category};
use crate::pass::{Pass, Phase, Scope};
use crate::policy::Goal;
use crate::tap::{lift, tap};

/// The slot of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct ParameterSlot<const D: usize> {
    pub(super) id: ParamId,
    pub(super) path: String,
    strategy: GradientCheckpointingStrategy,
    pub(super) pass: Arc<Pass>,
    /// Whether the backend can tell that a buffer has one owner.
    pub(super) tells_owners: bool,
    pub(super) state: Mutex<State<D>>,
}

#[derive(Debug)]
pub(super) struct State<const D: usize> {
    /// Without autodiff. Empty only while the optimizer has it.
    pub(super) value: Option<Tensor<D>>,
    pub(super) accumulated: Option<Tensor<D>>,
    /// The tap, and the graph it is in: every further read there returns it, so autodiff sums the uses.
    pub(super) tapped: Option<(usize, Tensor<D>)>,
    /// Gradients still to come: from taps, and from blocks that have yet to run a second time.
    pub(super) outstanding: usize,
    /// The sum of those that have come.
    pub(super) partial: Option<Tensor<D>>,
    pub(super) report: SlotReport,
    pub(super) first_update: bool,
    /// The optimizer state holds gradients of a group that has not ended.
    pub(super) unfinished: bool,
}

impl<const D: usize> ParameterSlot<D> {
    /// A slot for `value`, which has no autodiff.
    pub(crate) fn new(
        id: ParamId,
        path: &str,
        value: Tensor<D>,
        strategy: GradientCheckpointingStrategy,
        pass: Arc<Pass>,
    ) -> Self {
        let probe = Tensor::<1>::zeros([1], &value.device()).into_dispatch();
        let tells_owners = probe.can_mut();
        Self {
            id,
            path: path.to_string(),
            strategy,
            pass,
            tells_owners,
            state: Mutex::new(State {
                value: Some(value),
                accumulated: None,
                tapped: None,
                outstanding: 0,
                partial: None,
                report: SlotReport::new(tells_owners),
                first_update: true,
                unfinished: false,
            }),
        }
    }

    /// The current value without autodiff.
    pub(crate) fn value(&self) -> Tensor<D> {
        self.held(&self.state.lock())
    }

    /// The current value as an autodiff constant.
    pub(crate) fn constant(&self) -> Tensor<D> {
        lift(self.value(), self.strategy)
    }

    /// The current value as an ordinary trainable parameter holds it.
    pub(crate) fn leaf(&self) -> Tensor<D> {
        self.constant().require_grad()
    }

    /// The current value with its gradient tapped.
    ///
    /// # Panics
    ///
    /// Outside of a pass, and after the gradient has arrived.
    pub(crate) fn tapped(self: &Arc<Self>) -> Tensor<D> {
        let path = &self.path;
        assert!(
            self.pass.phase() != Phase::Idle,
            "parameter `{path}` was read outside of a training step, from a model cloned out of \
             one: use `FusedOptimizer::model()` or `valid()` instead"
        );
        if let Some(readers) = Scope::readers() {
            if readers.lock().add(self.id, self.clone()) {
                self.state.lock().outstanding += 1;
            }
            return self.constant();
        }
        let graph = Scope::graph();
        let mut state = self.state.lock();
        if let Some((_, tapped)) = state.tapped.as_ref().filter(|(g, _)| *g == graph) {
            return tapped.clone();
        }
        assert!(
            !state.report.received,
            "parameter `{path}` was read again after its gradient had arrived in this step: \
             combine the losses and run one backward pass per step"
        );
        let value = self.held(&state);
        let tick = self.pass.next_tick(&value.device(), self.strategy);
        let census = self.pass.census();
        let tapped = tap(value, self.strategy, tick, self.clone(), census);
        state.tapped = Some((graph, tapped.clone()));
        state.outstanding += 1;
        tapped
    }

    pub(super) fn held(&self, state: &State<D>) -> Tensor<D> {
        state.value.clone().unwrap_or_else(|| {
            panic!(
                "the value of parameter `{}` is gone: the optimizer panicked while it held it",
                self.path
            )
        })
    }
}

impl<const D: usize> Slot for ParameterSlot<D> {
    fn path(&self) -> &str {
        &self.path
    }

    fn show(&self) {
        memory::show(Category::Parameter, &self.value());
    }

    fn flush(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let plan = self.pass.plan();
        state.tapped = None;
        if let Some(gradient) = state.partial.take() {
            // A use that the loss does not depend on.
            return self.complete(state, gradient);
        }
        if state.report.received || plan.goal == Goal::Accumulate || !self.pass.admits() {
            return;
        }
        if let Some(gradient) = state.accumulated(plan.goal) {
            state.report.received = true;
            self.spend(state, &plan, gradient);
        } else if state.unfinished && !plan.goes_on {
            state.report.received = true;
            let nothing = self.held(state).zeros_like();
            self.step(state, &plan, nothing);
        }
    }

    fn has_accumulated(&self) -> bool {
        let state = self.state.lock();
        state.accumulated.is_some() || state.unfinished
    }

    fn end(&self) -> SlotReport {
        let mut state = self.state.lock();
        state.tapped = None;
        state.partial = None;
        state.outstanding = 0;
        std::mem::replace(&mut state.report, SlotReport::new(self.tells_owners))
    }

    fn drop_accumulated(&self) {
        self.state.lock().accumulated = None;
    }

    fn expect_first_update(&self) {
        let mut state = self.state.lock();
        state.first_update = true;
        state.unfinished = false;
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
