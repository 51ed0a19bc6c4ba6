use std::any::Any;
use std::sync::Arc;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::ParamId;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::{Slot, SlotReport};
use crate::memory::{self, Category};
use crate::pass::{Pass, Phase, Reader, Scope};
use crate::policy::{Goal, Plan};
use crate::tap::{GradientSink, lift, tap};

/// The slot of a parameter of rank `D`.
#[derive(Debug)]
pub(crate) struct ParameterSlot<const D: usize> {
    id: ParamId,
    path: String,
    strategy: GradientCheckpointingStrategy,
    pass: Arc<Pass>,
    /// Whether the backend can tell that a buffer has one owner.
    tells_owners: bool,
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<const D: usize> {
    /// Without autodiff. Empty only while the optimizer has it.
    value: Option<Tensor<D>>,
    accumulated: Option<Tensor<D>>,
    /// The tap, and the graph it is in: every further read there returns it, so autodiff sums the uses.
    tapped: Option<(usize, Tensor<D>)>,
    /// Gradients still to come: from taps, and from blocks that have yet to run a second time.
    outstanding: usize,
    /// The sum of those that have come.
    partial: Option<Tensor<D>>,
    report: SlotReport,
    first_update: bool,
    /// The optimizer state holds gradients of a group that has not ended.
    unfinished: bool,
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

    fn held(&self, state: &State<D>) -> Tensor<D> {
        state.value.clone().unwrap_or_else(|| {
            panic!(
                "the value of parameter `{}` is gone: the optimizer panicked while it held it",
                self.path
            )
        })
    }

    /// Does with the gradient of a pass what the pass is for.
    fn complete(&self, state: &mut State<D>, gradient: Tensor<D>) {
        state.report.received = true;
        if !self.pass.admits() {
            return;
        }
        let plan = self.pass.plan();
        let gradient = match state.accumulated(plan.goal) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        match plan.goal {
            Goal::Accumulate => state.accumulated = Some(gradient),
            Goal::Measure | Goal::Update => self.spend(state, &plan, gradient),
        }
    }

    /// Sends a complete gradient through the hooks, and steps the parameter if that is the goal.
    fn spend(&self, state: &mut State<D>, plan: &Plan, gradient: Tensor<D>) {
        let value = state.value.as_ref();
        let value = value.expect("a parameter in use has its value");
        match plan.hooks.call(&self.path, self.id, value, gradient) {
            Ok(Some(gradient)) if plan.goal == Goal::Update => self.step(state, plan, gradient),
            Ok(Some(_measured)) => {}
            Ok(None) => state.report.vetoed = true,
            Err(error) => self.pass.fail(error),
        }
    }

    fn step(&self, state: &mut State<D>, plan: &Plan, gradient: Tensor<D>) {
        // An optimizer that refuses the parameter (Muon on a bias) does so at the first update, by
        // a panic that takes its arguments along: the slot keeps a handle until that has passed.
        let value = if state.first_update {
            self.held(state)
        } else {
            let value = state.value.take();
            self.tell_copy(state, value.expect("a parameter in use has its value"))
        };
        memory::enter_update(&self.path);
        let mut update = self.pass.update();
        let value = update.step(&self.path, self.id, value, gradient);
        memory::show(Category::Parameter, &value);
        memory::enter(memory::Phase::Backward);
        state.value = Some(value);
        state.first_update = false;
        state.unfinished = plan.goes_on;
        state.report.updated = !plan.goes_on;
    }

    /// Notes whether someone else holds `value`, which is then copied instead of updated in place.
    fn tell_copy(&self, state: &mut State<D>, value: Tensor<D>) -> Tensor<D> {
        let value = value.into_dispatch();
        if self.tells_owners {
            let copied = !value.can_mut();
            state.report.copied = Some(copied);
            if copied {
                log::debug!(
                    "parameter `{}` is copied to be updated: something else holds its value",
                    self.path
                );
            }
        }
        Tensor::from_dispatch(value)
    }
}

impl<const D: usize> GradientSink for ParameterSlot<D> {
    fn receive(&self, gradient: DispatchTensor) -> Option<DispatchTensor> {
        let path = &self.path;
        match self.pass.phase() {
            Phase::Backward => {}
            Phase::Forward => panic!(
                "backward was called inside the forward closure of a fused step: return the loss \
                 instead. Parameter `{path}` and all others are unchanged"
            ),
            Phase::Idle => panic!(
                "the gradient of parameter `{path}` arrived outside of a training step: a tensor \
                 was carried out of its closure with its graph. Detach it"
            ),
        }

        let mut state = self.state.lock();
        let state = &mut *state;
        // The tap is a second handle to the value.
        state.tapped = None;

        let gradient = Tensor::<D>::from_dispatch(gradient);
        memory::show(Category::Gradient, &gradient);
        let gradient = match state.partial.take() {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        state.outstanding = state.outstanding.saturating_sub(1);
        match state.outstanding {
            0 => self.complete(state, gradient),
            _ => state.partial = Some(gradient),
        }
        None
    }
}

/// A block that has read the parameter without recording reads it once more.
impl<const D: usize> Reader for ParameterSlot<D> {
    fn path(&self) -> &str {
        &self.path
    }

    fn redeem(&self) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(1);
    }
}

impl<const D: usize> State<D> {
    /// The accumulated gradient, kept if it is needed again.
    fn accumulated(&mut self, goal: Goal) -> Option<Tensor<D>> {
        match goal {
            Goal::Measure => self.accumulated.clone(),
            Goal::Accumulate | Goal::Update => self.accumulated.take(),
        }
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
