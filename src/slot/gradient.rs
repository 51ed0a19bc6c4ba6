//! What becomes of a complete gradient.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

use super::parameter::ParameterSlot;
use super::stage::{Accumulated, Outcome, Stage};
use crate::caught::Caught;
use crate::device::{self, moved, sent};
use crate::error::FusedError;
use crate::memory::{self, Category};
use crate::pass::Pass;
use crate::policy::{self, Goal};

impl<const D: usize> ParameterSlot<D> {
    /// Does with the gradient of a pass what the pass is for.
    pub(super) fn complete(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        match pass.admits() {
            true => self.use_up(pass, gradient),
            false => self.finish(Outcome::Dropped),
        }
    }

    /// The same, for a pass that has not failed.
    pub(super) fn use_up(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        if let Err(error) = self.prove(&gradient) {
            pass.stop(error);
            return self.finish(Outcome::Dropped);
        }
        if let Some(share) = self.share.get() {
            return self.share_gradient(share, pass, Some(gradient));
        }
        match self.bring_home(gradient) {
            Ok(gradient) => self.use_gradients(pass, vec![gradient]),
            Err(error) => {
                pass.stop(error);
                self.finish(Outcome::Dropped);
            }
        }
    }

    /// Does with the gradients of a parameter, in the order of their sum, what the pass is for. Without any, it may
    /// be that something was accumulated.
    pub(super) fn use_gradients(&self, pass: &Arc<Pass>, gradients: Vec<Tensor<D>>) {
        let mut gradients = gradients.into_iter();
        let Some(first) = gradients.next() else {
            return self.use_accumulated(pass);
        };
        if pass.plan.goal == Goal::Accumulate {
            return self.add(pass, first, gradients);
        }
        let dtype = first.dtype();
        let first = match &self.state.lock().accumulated {
            // In the buffer of the gradient: the sum stays until the pass has ended well.
            Accumulated::Sum(sum) => policy::added(sum, first),
            _ => first,
        };
        let sum = gradients.fold(first, policy::add);
        self.spend(pass, policy::in_type(sum, dtype));
    }

    /// Uses what was accumulated for a parameter that has no gradient in this pass.
    fn use_accumulated(&self, pass: &Arc<Pass>) {
        if pass.plan.goal == Goal::Accumulate || !pass.admits() {
            return;
        }
        let state = self.state.lock();
        let sum = match &state.accumulated {
            Accumulated::Sum(sum) => Some((**sum).clone()),
            _ => None,
        };
        let begun = matches!(state.accumulated, Accumulated::InOptimizerState);
        drop(state);
        if let Some(sum) = sum {
            let value = self.value();
            let sum = policy::in_type(sent(sum, &value.device()), value.dtype());
            self.spend(pass, sum);
        } else if begun && pass.plan.goal == Goal::Update && !pass.plan.goes_on {
            let nothing = self.value().zeros_like();
            self.step(pass, nothing);
        }
    }

    /// Refuses the first gradient of the parameter if the device has not computed it: most kernels are launched
    /// for the first time then, and one that fails would spoil whatever is written with its result. With offload each
    /// is asked for, since memory is short there: what waits on the host is read anyway.
    fn prove(&self, gradient: &Tensor<D>) -> Result<(), FusedError> {
        if self.state.lock().proven && self.session.placement().is_none() {
            return Ok(());
        }
        device::check_written(gradient).map_err(|reason| FusedError::GradientNotComputed {
            path: self.path.clone(),
            reason,
        })?;
        self.state.lock().proven = true;
        Ok(())
    }

    /// Adds gradients, in the order of their sum, to what has been accumulated: in its buffer, since a second one would
    /// take the size of the parameter.
    fn add(&self, pass: &Arc<Pass>, first: Tensor<D>, others: impl Iterator<Item = Tensor<D>>) {
        let mut state = self.state.lock();
        let first = match &state.accumulated {
            Accumulated::Sum(sum) => policy::in_type(first, sum.dtype()),
            _ => pass.plan.accumulation.begin(first),
        };
        // The way to the host can fail: before it, nothing is overwritten.
        let first = match self.session.placement() {
            Some(placement) => moved(first, placement.host()),
            None => first,
        };
        let sum = match std::mem::take(&mut state.accumulated) {
            Accumulated::Sum(sum) => {
                state.accumulated = Accumulated::Overwritten;
                policy::add(*sum, first)
            }
            _ => first,
        };
        let sum = Box::new(others.fold(sum, policy::add));
        state.stage = Stage::Complete(Outcome::Added(sum));
    }

    /// Sends a complete gradient through the hooks, and steps the parameter if that is the goal.
    pub(super) fn spend(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        // Nothing is locked that a hook could wait for.
        let value = self.value();
        let called = pass.call_hook(&self.path, || {
            let hooks = &pass.plan.hooks;
            hooks.call(&self.path, self.id, &value, gradient)
        });
        drop(value);
        match called {
            Ok(Some(gradient)) if pass.plan.goal == Goal::Update => self.step(pass, gradient),
            Ok(Some(_measured)) => self.finish(Outcome::Measured),
            Ok(None) => self.finish(Outcome::Vetoed),
            Err(error) => {
                pass.stop(error);
                self.finish(Outcome::Dropped);
            }
        }
    }

    /// Steps the parameter, or lets the state of the optimizer take the gradient if more are to come.
    pub(super) fn step(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        if let Some(rehearsal) = &pass.rehearsal {
            rehearsal.use_gradient();
        }
        let mut state = self.state.lock();
        let value = self.held(&state);
        state.value = None;
        state.copy = None;
        let (value, copied) = self.tell_copy(value);
        memory::enter_update(&self.path);
        let more_to_come = pass.plan.goes_on;
        let stepped =
            self.session
                .update()
                .step(&self.path, self.id, value, gradient, more_to_come);
        if let Some(value) = &stepped.value {
            memory::show(Category::Parameter, value);
        }
        memory::enter(memory::Phase::Backward);
        state.value = stepped.value;
        state.stage = Stage::Complete(match stepped.result {
            Ok(()) if more_to_come => Outcome::Began,
            Ok(()) => Outcome::Updated { copied },
            Err(_) => Outcome::Dropped,
        });
        drop(state);
        if let Err(panic) = stepped.result {
            self.pass_on(panic);
        }
        if let Err(error) = self.renew_copy() {
            pass.stop(error);
        }
    }

    /// Goes on with the panic of an optimizer, with the name of the parameter.
    fn pass_on(&self, panic: Caught) -> ! {
        match panic.text() {
            Some(text) => panic!(
                "the optimizer panicked in the update of parameter `{}`, which keeps its value: {text}",
                self.path
            ),
            None => panic.resume(),
        }
    }

    pub(super) fn finish(&self, outcome: Outcome<D>) {
        self.state.lock().stage = Stage::Complete(outcome);
    }

    /// Notes whether someone else holds `value`, which is then copied instead of updated in place.
    fn tell_copy(&self, value: Tensor<D>) -> (Tensor<D>, Option<bool>) {
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
