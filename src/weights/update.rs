//! The update of a parameter by its complete gradient.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backburn_base::AnyTensor;
use backburn_base::caught::{Caught, catch};
use backburn_memory::Category;
use backburn_optim::Average;
use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

use super::gradient_state::{Accumulated, Outcome};
use super::master_param::{MasterParam, missing_message};
use crate::offload::OffloadEngine;
use crate::pass::{FailedIn, Pass, Session, StepEvent};
use crate::policy::GradientUse;
use crate::shared_optimizer::Eviction;
use crate::tap::next_operation;

impl MasterParam {
    /// Accumulates the complete gradients of a parameter, one for each rank in the order of their sum, or passes their sum through
    /// the hooks and updates the parameter. Without a gradient, applies the accumulated sum.
    pub(super) fn apply_gradients(
        &self,
        pass: &Arc<Pass>,
        gradients: impl IntoIterator<Item = AnyTensor>,
    ) {
        let gradient_use = pass.pipeline.gradient_use;
        let mut gradients = gradients.into_iter();
        let mut gradient = match gradients.next() {
            Some(first) if gradient_use == GradientUse::Accumulate => {
                return self.add(pass, first, gradients);
            }
            Some(mut first) => {
                // In the gradient's buffer: the sum is unchanged until the pass commits.
                if let Accumulated::Sum(sum) = &self.state.lock().accumulated {
                    let sum = (**sum).clone().to_device(&first.device());
                    first = first.in_type(sum.dtype()).added(sum);
                }
                gradients.fold(first, AnyTensor::added)
            }
            None if self.completes_in_state(pass) => {
                // Drops this handle of the value before the step, which then works in place.
                let zeros = self.value().zeros_like();
                return self.step(pass, zeros.into());
            }
            None => match self.take_sum(pass) {
                Some(sum) => sum,
                None => return,
            },
        };
        if gradient.dtype() != self.dtype {
            gradient = gradient.in_type(self.dtype);
        }
        let hooks = &pass.pipeline.hooks;
        let called = if hooks.0.is_empty() {
            Ok(Some(gradient))
        } else {
            // The caller holds no lock that a hook could wait for.
            let value = self.value();
            let call = || hooks.call(&self.path, self.id, &value, gradient);
            pass.call_hooks(&self.path, call)
        };
        match called {
            Err(error) => pass.fail(FailedIn::Update, error),
            Ok(_) if gradient_use == GradientUse::Measure => {
                self.state.lock().outcome = Some(Outcome::Measured);
            }
            Ok(Some(gradient)) => self.step(pass, gradient),
            Ok(None) => self.state.lock().outcome = Some(Outcome::Vetoed),
        }
    }

    /// Returns `true` if this pass updates a parameter whose earlier micro-batches are in the optimizer state.
    fn completes_in_state(&self, pass: &Pass) -> bool {
        let updates = pass.pipeline.gradient_use == GradientUse::Update && !pass.has_failed();
        updates && matches!(self.state.lock().accumulated, Accumulated::InOptimizerState)
    }

    /// Returns the accumulated sum, for a parameter without a gradient in this pass.
    fn take_sum(&self, pass: &Pass) -> Option<AnyTensor> {
        if pass.pipeline.gradient_use == GradientUse::Accumulate || pass.has_failed() {
            return None;
        }
        let mut state = self.state.lock();
        let Accumulated::Sum(sum) = &state.accumulated else {
            return None;
        };
        let sum = (**sum).clone();
        if pass.pipeline.consumes_sums {
            state.accumulated = Accumulated::Nothing;
        }
        drop(state);
        Some(sum.to_device(&self.storage.location.device))
    }

    /// Adds gradients, in the order of their sum, to the accumulated sum, in place: a second buffer would take the
    /// size of the parameter.
    fn add(&self, pass: &Arc<Pass>, first: AnyTensor, others: impl Iterator<Item = AnyTensor>) {
        let mut state = self.state.lock();
        let first = match &state.accumulated {
            Accumulated::Sum(sum) => first.in_type(sum.dtype()),
            _ => pass.pipeline.accumulation.begin(first.0).into(),
        };
        // A transfer can fail, so all precede the first write.
        let first = first.copy_to_device(&self.storage.accumulation_device);
        let others =
            others.map(|gradient| gradient.copy_to_device(&self.storage.accumulation_device));
        let others: Vec<_> = others.collect();
        let sum = match std::mem::take(&mut state.accumulated) {
            Accumulated::Sum(sum) => {
                state.accumulated = Accumulated::Overwritten;
                sum.added(first)
            }
            _ => first,
        };
        let sum = Box::new(others.into_iter().fold(sum, AnyTensor::added));
        let reported = pass
            .observers
            .as_ref()
            .map(|observers| (observers, (*sum).clone()));
        state.outcome = Some(Outcome::Added(sum));
        drop(state);
        if let Some((observers, sum)) = reported {
            observers.emit(StepEvent::Tensor(Category::Gradient, &sum));
        }
    }

    /// Steps the parameter, or adds the gradient to the optimizer state before the last micro-batch.
    fn step(&self, pass: &Arc<Pass>, gradient: AnyTensor) {
        let session = self.session.get().expect("a master parameter has an owner");
        let engine = self.storage.state_offload.as_ref();
        let engine = engine.filter(|_| pass.observers.is_none());
        if let Some(engine) = engine {
            self.prefetch_next_state(session, engine);
        }
        let path = &*self.path;
        if let Some(observers) = &pass.observers {
            observers.emit(StepEvent::Updating { path });
        }
        let mut state = self.state.lock();
        let value = state.value.take();
        let value = value.unwrap_or_else(|| panic!("{}", missing_message(path)));
        let value = value.0.into_dispatch();
        // If the value has another owner, it is copied instead of updated in place.
        let copied = (self.storage.detects_sole_owner).then(|| !value.can_mut());
        let value = AnyTensor(Tensor::from_dispatch(value));
        // With another owner, an additional handle costs nothing.
        let before = (copied == Some(true)).then(|| value.clone());
        let is_last_micro_batch = pass.pipeline.gradient_use == GradientUse::Update;
        let stepped =
            session
                .optimizer
                .lock()
                .step(path, self.id, value, gradient, is_last_micro_batch);
        state.value = stepped.value.or(before);
        state.outcome = match (&stepped.result, is_last_micro_batch) {
            (Ok(()), true) => Some(Outcome::Updated { copied }),
            (Ok(()), false) => Some(Outcome::AddedToState),
            (Err(_), _) => None,
        };
        if !matches!(state.outcome, Some(Outcome::AddedToState)) {
            self.version.store(next_operation(), Ordering::Release);
        }
        // After the outcome, because it can fail.
        if let (Some(Outcome::Updated { .. }), Some(value), Some(average)) =
            (&state.outcome, &state.value, &state.average)
        {
            update_average(path, average, value);
        }
        drop(state);
        if copied == Some(true) {
            log::debug!(
                "parameter `{path}` is copied for its update, because a clone of the model or an activation holds its value"
            );
        }
        if let Some(observers) = &pass.observers {
            if let Some(value) = self.find() {
                observers.emit(StepEvent::Tensor(Category::Parameter, &value));
            }
            observers.emit(StepEvent::Updated { path, copied });
        }
        if let Err(panic) = stepped.result {
            self.resume_panic(panic, stepped.has_written);
        }
        if let Some(eviction) = stepped.eviction {
            self.evict_state(pass, eviction, engine);
        }
    }

    /// Prefetches the optimizer state of the parameter that was stepped next in the last pass.
    fn prefetch_next_state(&self, session: &Session, engine: &OffloadEngine) {
        let limit = engine.transfers.limit.prefetch();
        let device = &self.storage.location.device;
        let mut optimizer = session.optimizer.lock();
        let next = optimizer.prefetch_next(self.id, self.elements(), limit, device);
        drop(optimizer);
        next.into_iter().for_each(|next| engine.queue_fetch(next));
    }

    /// Moves an optimizer state to the host, on a worker thread if possible.
    fn evict_state(
        &self,
        pass: &Arc<Pass>,
        eviction: Eviction,
        engine: Option<&Arc<OffloadEngine>>,
    ) {
        let path = self.path.clone();
        let evict = move || match catch(eviction.run) {
            Ok(()) => {}
            Err(panic) => panic!(
                "the optimizer state of parameter `{path}` stays on the device, because it can't be read: {}",
                panic.message()
            ),
        };
        let fits = |engine: &&Arc<OffloadEngine>| {
            eviction.bytes.unwrap_or(usize::MAX) <= engine.transfers.limit.prefetch()
        };
        match engine.filter(fits) {
            None => evict(),
            Some(engine) => {
                let queued_pass = pass.clone();
                engine.queue_eviction(move || queued_pass.guarded(FailedIn::Update, evict));
            }
        }
    }

    /// Resumes the panic of an optimizer, with the name of the parameter and what happened to its value.
    fn resume_panic(&self, panic: Caught, has_written: bool) -> ! {
        let outcome = match self.find() {
            None => "whose value is lost",
            Some(_) if has_written => "which was updated",
            Some(_) => "which keeps its value",
        };
        match panic.text() {
            Some(text) => panic!(
                "the optimizer panicked in the update of parameter `{}`, {outcome}: {text}",
                self.path
            ),
            None => panic.resume(),
        }
    }
}

/// Updates the average of the parameter at `path`, after the value was updated.
fn update_average(path: &str, average: &Average, value: &AnyTensor) {
    if let Err(panic) = catch(|| average.update(value)) {
        log::error!(
            "the average of parameter `{path}` is lost and starts again from its next value"
        );
        panic.resume();
    }
}
