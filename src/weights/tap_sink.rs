//! The path of a gradient from a tap to the master parameter. A tap passes it to its [`TapSink`], and the local
//! parameter sums what arrives ([`add_gradient`](LocalParam::add_gradient)). When no gradient is pending, the sum is
//! reported to the master ([`report_gradient`](LocalParam::report_gradient)). A gradient that needs no tap enters at
//! [`report_untapped`](LocalParam::report_untapped). The module `update` applies it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backburn_base::{AnyTensor, with_dims};
use backburn_memory::Category;
use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::applied::AppliedGradient;
use super::gradient_state::GradientState;
use super::local_param::LocalParam;
use crate::device;
use crate::error::FusedError;
use crate::pass::{ClosureKind, FailedIn, Pass, PendingCount, Scope, Stage, StepEvent};
use crate::policy::PartialSum;
use crate::replica::HeldBytes;
use crate::tap::{GradientSink, PassedGradients};

/// The sink of one tap of a parameter.
pub(super) struct TapSink {
    pub(super) local_param: Arc<LocalParam>,
    pub(super) pass: Arc<Pass>,
    /// The stand-in for the gradient, if the closure collects gradients from the graph of the tap.
    pub(super) applied: Option<Arc<AppliedGradient>>,
    /// `None` after the gradient has arrived.
    pub(super) pending: Mutex<Option<PendingCount>>,
    /// Bytes of a value that was gathered from its owner, tracked until the graph is dropped.
    pub(super) _gathered: Option<HeldBytes>,
}

impl GradientSink for TapSink {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        // Gradients of a recomputed block arrive after its closure has returned.
        let is_in_block = Scope::current()
            .is_some_and(|scope| Arc::ptr_eq(&scope.pass, &self.pass) && scope.block.is_some());
        if is_in_block || matches!(*self.pass.stage.lock(), Stage::Forward | Stage::Over) {
            return self.refuse(is_in_block);
        }
        if self.pass.closure_kind == ClosureKind::Backward {
            self.pass.end_forward_numbers();
            self.pass.check_scaled();
        }
        self.pass.has_received.store(true, Ordering::Relaxed);
        self.pass.numbers.report_progress();
        self.pending.lock().take();
        let gradient = AnyTensor(Tensor::from_dispatch(gradient));
        self.pass.guarded(FailedIn::Closure, || {
            if let Some(observers) = &self.pass.observers {
                observers.emit(StepEvent::Tensor(Category::Gradient, &gradient));
            }
            self.local_param.add_gradient(&self.pass, gradient);
        });
        PassedGradients {
            other: self.applied.as_ref().map(|applied| applied.register()),
            ..PassedGradients::default()
        }
    }
}

impl TapSink {
    /// Refuses a gradient that arrives before or after the backward pass of its step, or from a backward pass in the closure of a block.
    fn refuse(&self, is_in_block: bool) -> PassedGradients {
        let path = &self.local_param.master.path;
        if matches!(*self.pass.stage.lock(), Stage::Over) {
            panic!(
                "the gradient of parameter `{path}` arrived outside of a training step: a tensor \
                 left the closure of its step with its graph. Detach the tensor in the closure"
            );
        }
        self.pass.guarded(FailedIn::Closure, || match is_in_block {
            true => panic!(
                "backward was called inside of a block under gradient checkpointing, for parameter `{path}`, which is unchanged: \
                 compute inner gradients before the step, from `FusedOptimizer::model()`"
            ),
            false => panic!(
                "backward was called inside the forward closure of a fused step: return the loss instead. Parameter \
                 `{path}` and all others are unchanged. For a backward pass over a copy of the weights, take `FusedOptimizer::model()` \
                 before the step"
            ),
        })
    }
}

/// Returns `true` if `gradients` has one of the parameter `id`, which has this number of dimensions.
pub(super) fn has_gradient(gradients: &GradientsParams, id: ParamId, dims: usize) -> bool {
    with_dims!(dims, D => gradients.get::<D>(id).is_some())
}

impl LocalParam {
    /// Adds a gradient to the sum. If no other gradient is pending, reports the sum.
    fn add_gradient(self: &Arc<Self>, pass: &Arc<Pass>, gradient: AnyTensor) {
        let mut state = self.gradient.lock();
        let GradientState::Pending(expecting) = &mut *state else {
            unreachable!("a gradient is pending until it arrives")
        };
        // The tap is a second handle to the value.
        expecting.tapped = None;
        let is_last = Arc::strong_count(&expecting.pending_count) == 1;
        let gradient = match expecting.partial.take() {
            None if is_last => gradient,
            partial => {
                let partial = match partial {
                    Some(partial) => partial.with(gradient, pass.pipeline.accumulation),
                    None => PartialSum::of(gradient),
                };
                if !is_last {
                    expecting.partial = Some(Box::new(partial));
                    return;
                }
                partial.whole()
            }
        };
        *state = GradientState::Done { received: true };
        drop(state);
        if pass.has_failed() {
            return;
        }
        // Updates are queued in the order of arrival.
        let engine = self.context.engine.as_ref();
        let engine =
            engine.filter(|engine| !engine.config.offloads_states() && pass.observers.is_none());
        match engine {
            None => self.report_gradient(pass, Some(gradient)),
            Some(engine) => {
                let (local_param, queued_pass) = (self.clone(), pass.clone());
                engine.queue_update(self.copy.bytes(), move || {
                    // A failure on another thread stops the pass at the next gradient.
                    if !queued_pass.update_has_failed() {
                        queued_pass.guarded(FailedIn::Update, || {
                            local_param.report_gradient(&queued_pass, Some(gradient))
                        });
                    }
                });
            }
        }
        if let Some(member) = &self.membership {
            self.wait_for_others(pass, member);
        }
    }

    /// Reports a gradient that arrived without a tap, or that was incomplete before the end of the pass.
    pub(super) fn report_untapped(&self, pass: &Arc<Pass>, gradient: AnyTensor) {
        *self.gradient.lock() = GradientState::Done { received: true };
        if !pass.has_failed() {
            self.report_gradient(pass, Some(gradient));
            if let Some(member) = &self.membership {
                self.wait_for_others(pass, member);
            }
        }
    }

    /// Returns `true` if `gradients` contains the gradient of this retained parameter.
    pub(super) fn is_retained_in(&self, gradients: &GradientsParams) -> bool {
        has_gradient(gradients, self.master.id, self.master.shape.num_dims())
    }

    /// Reports the gradient of a retained parameter, or without one its accumulated sum.
    pub(super) fn report_retained(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams) {
        let id = self.master.id;
        let gradient = with_dims!(
            self.master.shape.num_dims(),
            D => gradients.remove::<D>(id).map(AnyTensor::from)
        );
        match gradient {
            Some(gradient) => {
                if let Some(observers) = &pass.observers {
                    observers.emit(StepEvent::Tensor(Category::Gradient, &gradient));
                }
                self.report_untapped(pass, gradient);
            }
            None => self.report_gradient(pass, None),
        }
    }

    /// Reports the gradient of this rank, or its absence, to the master. The first gradient is checked for asynchronous
    /// errors, because most kernels are launched first then. With offload every gradient is checked: the host reads it.
    pub(super) fn report_gradient(&self, pass: &Arc<Pass>, gradient: Option<AnyTensor>) {
        let master = &self.master;
        if let Some(gradient) = &gradient {
            if let Some(observers) = &pass.observers {
                let bytes = gradient.shape().num_elements() * gradient.dtype().size();
                let path = &master.path;
                observers.emit(StepEvent::GradientReady { path, bytes });
            }
            let has_passed = self.passed_check.load(Ordering::Relaxed);
            if !has_passed || self.context.engine.is_some() {
                if let Err(reason) = device::check_async_errors(&**gradient) {
                    let path = master.path.to_string();
                    let error = FusedError::GradientNotComputed { path, reason };
                    return pass.fail(FailedIn::Update, error);
                }
                self.passed_check.store(true, Ordering::Relaxed);
            }
        }
        // The gradient already has the device and type of the master.
        if self.membership.is_none() && self.copy.is_aliased() {
            return master.apply_gradients(pass, gradient);
        }
        if let Err(error) = self.send_to_master(pass, gradient) {
            pass.fail(FailedIn::Update, error);
        }
    }
}
