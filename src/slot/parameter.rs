use std::any::Any;
use std::sync::Arc;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::ParamId;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use parking_lot::Mutex;

use super::{Slot, SlotReport};
use crate::memory::{self, Category};
use crate::pass::{Goal, Pass, Phase};
use crate::policy::squares;
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
    /// The tap of this pass: every further read returns it, so autodiff sums the uses.
    tapped: Option<Tensor<D>>,
    report: SlotReport,
    first_update: bool,
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
                report: SlotReport::new(tells_owners),
                first_update: true,
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
        let mut state = self.state.lock();
        if let Some(tapped) = &state.tapped {
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
        state.tapped = Some(tapped.clone());
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

    /// Does with a complete gradient what the pass is for.
    fn spend(&self, state: &mut State<D>, gradient: Tensor<D>) {
        if self.pass.measures() {
            state.report.squares = Some(squares(&gradient));
        }
        if self.pass.goal() == Goal::Update {
            let gradient = match self.pass.coefficient() {
                Some(coefficient) => gradient.mul_scalar(coefficient),
                None => gradient,
            };
            self.step(state, gradient);
        }
    }

    fn step(&self, state: &mut State<D>, gradient: Tensor<D>) {
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
        state.report.updated = true;
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
    fn receive(&self, gradient: DispatchTensor) {
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
        state.report.received = true;

        let gradient = Tensor::<D>::from_dispatch(gradient);
        memory::show(Category::Gradient, &gradient);
        // What is measured is needed again.
        let accumulated = match self.pass.goal() {
            Goal::Measure => state.accumulated.clone(),
            Goal::Accumulate | Goal::Update => state.accumulated.take(),
        };
        let gradient = match accumulated {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        match self.pass.goal() {
            Goal::Accumulate => state.accumulated = Some(gradient),
            Goal::Measure | Goal::Update => self.spend(state, gradient),
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
        if state.report.received {
            return;
        }
        let gradient = match self.pass.goal() {
            Goal::Measure => state.accumulated.clone(),
            Goal::Accumulate => None,
            Goal::Update => state.accumulated.take(),
        };
        if let Some(gradient) = gradient {
            state.tapped = None;
            self.spend(state, gradient);
        }
    }

    fn end(&self) -> SlotReport {
        let mut state = self.state.lock();
        state.tapped = None;
        std::mem::replace(&mut state.report, SlotReport::new(self.tells_owners))
    }

    #[cfg(feature = "train")]
    fn drop_accumulated(&self) {
        self.state.lock().accumulated = None;
    }

    fn expect_first_update(&self) {
        self.state.lock().first_update = true;
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
