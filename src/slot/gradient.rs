//! What becomes of a gradient that arrives at its slot.

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;

use super::parameter::{ParameterSlot, State};
use crate::memory::{self, Category};
use crate::pass::{Phase, Reader};
use crate::policy::{Goal, Plan};
use crate::tap::GradientSink;

impl<const D: usize> ParameterSlot<D> {
    /// Does with the gradient of a pass what the pass is for.
    pub(super) fn complete(&self, state: &mut State<D>, gradient: Tensor<D>) {
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
    pub(super) fn spend(&self, state: &mut State<D>, plan: &Plan, gradient: Tensor<D>) {
        let value = state.value.as_ref();
        let value = value.expect("a parameter in use has its value");
        match plan.hooks.call(&self.path, self.id, value, gradient) {
            Ok(Some(gradient)) if plan.goal == Goal::Update => self.step(state, plan, gradient),
            Ok(Some(_measured)) => {}
            Ok(None) => state.report.vetoed = true,
            Err(error) => self.pass.fail(error),
        }
    }

    pub(super) fn step(&self, state: &mut State<D>, plan: &Plan, gradient: Tensor<D>) {
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
    pub(super) fn accumulated(&mut self, goal: Goal) -> Option<Tensor<D>> {
        match goal {
            Goal::Measure => self.accumulated.clone(),
            Goal::Accumulate | Goal::Update => self.accumulated.take(),
        }
    }
}
