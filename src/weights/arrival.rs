//! The way of a gradient from a tap to the home of its parameter: a tap [receives](Arrival) one, the view adds up what has come for it
//! ([`arrive`](View::arrive)) and, when no other is pending, reports the sum to the home
//! ([`report_gradient`](View::report_gradient)). A gradient that is complete without a tap joins them there ([`complete`](View::complete)). What home
//! does with it is in `update`.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::stage::{GradientState, Held};
use super::view::View;
use crate::device;
use crate::error::FusedError;
use crate::layout::Holding;
use crate::memory::{self, Category};
use crate::parameters::{AnyTensor, with_rank};
use crate::pass::{self, Closure, FailedIn, Failure, Owed, Pass};
use crate::policy::{Accumulation, PartialSum};
use crate::replica::{Hold, Membership};
use crate::tap::{self, GradientSink, PassedGradients};

/// Where the gradient of one tap of a parameter arrives.
pub(super) struct Arrival {
    pub(super) view: Arc<View>,
    pub(super) pass: Arc<Pass>,
    pub(super) owed: Owed,
    /// Counts a value that was gathered from its owner, as long as the graph has it.
    pub(super) _gathered: Option<Hold>,
}

impl GradientSink for Arrival {
    fn receive(&self, gradient: DispatchTensor) -> PassedGradients {
        let path = &self.view.home.path;
        match *self.pass.stage.lock() {
            pass::Stage::Backward | pass::Stage::Failed(_) => {}
            pass::Stage::Forward => panic!(
                "backward was called inside the forward closure of a fused step: return the loss \
                 instead. Parameter `{path}` and all others are unchanged"
            ),
            pass::Stage::Over => panic!(
                "the gradient of parameter `{path}` arrived outside of a training step: a tensor \
                 was carried out of its closure with its graph. Detach it"
            ),
        }
        if self.pass.is_recorded {
            self.pass
                .guarded(FailedIn::Backward, memory::end_beyond_limit);
        }
        if self.pass.closure == Closure::Backward {
            self.pass.end_forward();
        }
        let gradient = Tensor::<1>::from_dispatch(gradient);
        if self.pass.is_recorded {
            memory::show(Category::Gradient, &gradient);
        }
        self.owed.settle();
        self.pass.guarded(FailedIn::Backward, || {
            self.view.arrive(&self.pass, gradient.into())
        });
        PassedGradients::default()
    }
}

impl View {
    /// Adds a gradient to those that have arrived, and uses the sum if no other is pending.
    fn arrive(self: &Arc<Self>, pass: &Arc<Pass>, gradient: AnyTensor) {
        let mut state = self.state.lock();
        let GradientState::Accumulating(expecting) = &mut state.stage else {
            unreachable!("a tap is owed for until its gradient arrives")
        };
        // The tap is a second handle to the value.
        expecting.tapped = None;
        let is_settled = expecting.debt.is_settled();
        let gradient = match expecting.partial.take() {
            None if is_settled => gradient,
            partial => {
                let partial = match partial {
                    Some(partial) => partial.with(gradient, pass.plan.accumulation),
                    None => PartialSum::of(gradient),
                };
                if !is_settled {
                    expecting.partial = Some(Box::new(partial));
                    return;
                }
                partial.whole()
            }
        };
        state.stage = GradientState::Done { received: true };
        drop(state);
        if !pass.admits() {
            return;
        }
        // All through one queue, in the order in which they arrive. A recording knows one thread at a time.
        let placement = self.layout.placement.as_ref();
        let queue = placement.filter(|p| !p.config.offloads_states() && !pass.is_recorded);
        match queue {
            None => self.report_gradient(pass, Some(gradient)),
            Some(placement) => {
                let (view, of_queue) = (self.clone(), pass.clone());
                placement.step_on_host(self.bytes(), move || {
                    // What has failed elsewhere since, later gradients see.
                    if !of_queue.is_stopped() {
                        of_queue.guarded(FailedIn::Update, || {
                            view.report_gradient(&of_queue, Some(gradient))
                        });
                    }
                });
            }
        }
        if let Some(member) = &self.among {
            self.wait_for_others(pass, member);
        }
    }

    /// Uses a gradient that has not come through a tap, or was not complete before the end of the pass.
    pub(super) fn complete(&self, pass: &Arc<Pass>, gradient: AnyTensor) {
        self.state.lock().stage = GradientState::Done { received: true };
        if pass.admits() {
            self.report_gradient(pass, Some(gradient));
            if let Some(member) = &self.among {
                self.wait_for_others(pass, member);
            }
        }
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not.
    pub(super) fn flush(&self, pass: &Arc<Pass>) {
        let arrived = match &mut self.state.lock().stage {
            GradientState::Done { .. } => return,
            // A use that the loss does not depend on.
            GradientState::Accumulating(expecting) => {
                expecting.tapped = None;
                expecting.partial.take()
            }
            GradientState::Idle => None,
        };
        match arrived {
            Some(partial) => self.complete(pass, partial.whole()),
            None => self.report_gradient(pass, None),
        }
    }

    /// Uses the gradient of a parameter that is an ordinary leaf, if it is among these.
    pub(super) fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams) {
        let id = self.home.id;
        let gradient = with_rank!(
            self.home.shape.num_dims(),
            D => gradients.remove::<D>(id).map(AnyTensor::from)
        );
        match gradient {
            Some(gradient) => self.complete(pass, gradient),
            None => self.flush(pass),
        }
    }

    /// Reports the gradient of this rank, or its absence, to the home. The last rank to do so has the home apply the sum.
    ///
    /// The device must have computed it: the first gradient of a parameter is checked, since most kernels are launched for the
    /// first time then, and one that fails would spoil whatever is written with its result. With offload each is checked, since
    /// memory is short there, and the host reads it anyway.
    pub(super) fn report_gradient(&self, pass: &Arc<Pass>, gradient: Option<AnyTensor>) {
        let home = &self.home;
        if let Some(gradient) = &gradient {
            if pass.is_recorded {
                memory::note_gradient(gradient.shape().num_elements() * gradient.dtype().size());
            }
            let is_proven = self.state.lock().proven && self.layout.placement.is_none();
            if !is_proven {
                if let Err(reason) = device::check_written(&**gradient) {
                    let path = home.path.to_string();
                    let error = FusedError::GradientNotComputed { path, reason };
                    return pass.fail(FailedIn::Update, error);
                }
                self.state.lock().proven = true;
            }
        }
        // Where the home is what this rank computes with, the gradient is there.
        if self.among.is_none() && self.given == Holding::Shared {
            return home.apply_gradients(pass, gradient.into_iter().collect());
        }
        if let Err(error) = self.reduce(pass, gradient) {
            pass.fail(FailedIn::Update, error);
        }
    }

    /// Sends the gradient of this rank, or its absence, to the home.
    fn reduce(&self, pass: &Arc<Pass>, gradient: Option<AnyTensor>) -> Result<(), FusedError> {
        let home = &self.home;
        let ranks = self.among.as_ref();
        if gradient.is_none() && ranks.is_some() {
            if !pass.admits() {
                return Ok(());
            }
            self.state.lock().stage = GradientState::Done { received: false };
        }
        let hold = gradient
            .as_ref()
            .and(ranks)
            .map(|member| self.count_arrival(member));
        let gradient = gradient
            .map(|gradient| self.bring_home(pass, gradient))
            .transpose()?;
        let Some(member) = ranks else {
            home.apply_gradients(pass, gradient.into_iter().collect());
            // What the device computes with next is on its way while other gradients are computed.
            return self.renew_copy();
        };
        let held = gradient.zip(hold);
        let held = held.map(|(gradient, hold)| Held { gradient, hold });
        if let Some(gradients) = home.answer(&self.layout, held) {
            home.use_answers(&member.group, gradients);
        }
        Ok(())
    }

    /// A gradient where the value rests: in its float type, or in a wider one if the sum is to be rounded once.
    fn bring_home(&self, pass: &Pass, gradient: AnyTensor) -> Result<AnyTensor, FusedError> {
        let home = &self.home;
        let is_wider = gradient.dtype().size() > home.dtype.size();
        let dtype = match pass.plan.accumulation {
            Accumulation::InFullPrecision if is_wider => gradient.dtype(),
            _ => home.dtype,
        };
        let device = &home.ground.site.device;
        let gradient = self
            .layout
            .carried(&self.home.path, gradient, device, dtype)?;
        if home.ground.site.is_host
            && let Some(placement) = &self.layout.placement
        {
            // It is gone from the device before the update begins.
            device::hand_over(&placement.device);
        }
        Ok(gradient)
    }

    /// Counts a gradient that has arrived on this rank, and is held by the owner from here on.
    fn count_arrival(&self, member: &Membership) -> Hold {
        let bytes = self.bytes();
        let owner = self.layout.owner(self.home.id);
        if member.rank != owner {
            drop(member.group.ledger.hold(member.rank, bytes));
        }
        member.group.ledger.hold(owner, bytes)
    }

    /// This rank has sent a gradient more: waits while it is too far ahead of the others.
    fn wait_for_others(&self, pass: &Arc<Pass>, member: &Membership) {
        if pass.is_stopped() {
            return;
        }
        let device = member.device();
        let waits = member
            .group
            .flow
            .sent(member.rank, self.home.bytes(), || !tap::is_free(device));
        if waits.is_err() {
            let reason = "it waits in its backward pass for a rank that waits for it: both compute with one tracked tensor, so \
                 that Burn joins their autodiff graphs, and locks both. Detach what the closure has captured, and give \
                 every rank a tensor of its own";
            pass.fail(FailedIn::Backward, Failure::Deadlock(reason.to_string()));
            panic!("{reason}");
        }
    }
}
