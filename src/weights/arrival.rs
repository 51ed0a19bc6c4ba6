use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use super::answers::Held;
use super::stage::Stage;
use super::view::View;
use crate::device;
use crate::error::FusedError;
use crate::memory::{self, Category};
use crate::pass::{self, Owed, Pass};
use crate::policy::{Accumulation, PartialSum};
use crate::replica::{Hold, Membership};
use crate::tap::{self, GradientSink, Passed};

/// Where the gradient of one tap of a parameter arrives.
#[derive(Debug)]
pub(super) struct Arrival<const D: usize> {
    pub(super) view: Arc<View<D>>,
    pub(super) pass: Arc<Pass>,
    pub(super) owed: Owed,
    /// Counts a value that was gathered from its owner, as long as the graph has it.
    pub(super) _gathered: Option<Hold>,
}

impl<const D: usize> GradientSink for Arrival<D> {
    fn receive(&self, gradient: DispatchTensor) -> Passed {
        let path = self.view.path();
        match *self.pass.stage() {
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
        self.pass.end_turn();
        let gradient = Tensor::<D>::from_dispatch(gradient);
        memory::show(Category::Gradient, &gradient);
        self.owed.settle();
        let arrive = || self.view.arrive(&self.pass, gradient);
        self.pass.guarded(arrive);
        Passed::default()
    }
}

impl<const D: usize> View<D> {
    /// Adds a gradient to those that have come, and uses their sum if nothing else is to come.
    fn arrive(self: &Arc<Self>, pass: &Arc<Pass>, gradient: Tensor<D>) {
        let mut state = self.state.lock();
        let Stage::Expecting(expecting) = &mut state.stage else {
            unreachable!("a tap is owed for until its gradient arrives")
        };
        // The tap is a second handle to the value.
        expecting.tapped = None;
        let partial = match expecting.partial.take() {
            Some(partial) => partial.with(gradient, pass.plan.accumulation),
            None => PartialSum::of(gradient),
        };
        if !expecting.debt.is_settled() {
            expecting.partial = Some(Box::new(partial));
            return;
        }
        state.stage = Stage::Answered { received: true };
        drop(state);
        let gradient = partial.whole();
        if !pass.admits() {
            return;
        }
        // All through one queue, in the order in which they arrive. A recording knows one thread at a time.
        let placement = self.terms.layout.placement();
        let queue = placement.filter(|p| !p.config.states_wait() && !memory::is_recording());
        match queue {
            None => self.give(pass, gradient),
            Some(placement) => {
                let (view, of_queue) = (self.clone(), pass.clone());
                placement.send_home(self.terms.bytes(), move || {
                    // What has failed elsewhere since, later gradients see.
                    if !of_queue.is_stopped() {
                        of_queue.guarded_in_queue(|| view.give(&of_queue, gradient));
                    }
                });
            }
        }
        self.wait_for_others(pass);
    }

    /// Uses what has come and what was accumulated, as far as the backward pass has not.
    pub(super) fn flush(&self, pass: &Arc<Pass>) {
        let arrived = match &mut self.state.lock().stage {
            Stage::Answered { .. } => return,
            // A use that the loss does not depend on.
            Stage::Expecting(expecting) => {
                expecting.tapped = None;
                expecting.partial.take()
            }
            Stage::Unread => None,
        };
        match arrived {
            Some(partial) => self.complete(pass, partial.whole()),
            None => self.answer(pass, None),
        }
    }

    /// Uses a gradient that has not come through a tap, or was not complete before the end of the pass.
    pub(super) fn complete(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        self.state.lock().stage = Stage::Answered { received: true };
        if pass.admits() {
            self.give(pass, gradient);
            self.wait_for_others(pass);
        }
    }

    /// Gives a gradient home, if its device has computed it.
    fn give(&self, pass: &Arc<Pass>, gradient: Tensor<D>) {
        memory::note_gradient(gradient.shape().num_elements() * gradient.dtype().size());
        match self.prove(&gradient) {
            Ok(()) => self.answer(pass, Some(gradient)),
            Err(error) => pass.stop(error),
        }
    }

    /// Tells the home what this rank has of the gradient. The last rank to do so has the home use the sum.
    fn answer(&self, pass: &Arc<Pass>, gradient: Option<Tensor<D>>) {
        let home = &self.home;
        let ranks = self.terms.layout.among_others();
        if gradient.is_none() && ranks.is_some() {
            if !pass.admits() {
                return;
            }
            self.state.lock().stage = Stage::Answered { received: false };
        }
        let hold = gradient
            .as_ref()
            .and(ranks)
            .map(|member| self.count_arrival(member));
        let brought = gradient
            .map(|gradient| self.bring_home(pass, gradient))
            .transpose();
        let gradient = match brought {
            Ok(gradient) => gradient,
            Err(error) => return pass.stop(error),
        };
        let Some(member) = ranks else {
            let gradients = gradient.into_iter().collect();
            home.use_gradients(pass, gradients);
            // What the device computes with next is on its way while other gradients are computed.
            if let Err(error) = self.renew_copy() {
                pass.stop(error);
            }
            return;
        };
        let held = gradient.zip(hold);
        let held = held.map(|(gradient, hold)| Held { gradient, hold });
        if let Some(gradients) = home.answer(&self.terms.layout, held) {
            home.use_answers(&member.group, gradients);
        }
    }

    /// A gradient where the value rests: in its float type, unless the sum is to be rounded once.
    fn bring_home(&self, pass: &Pass, gradient: Tensor<D>) -> Result<Tensor<D>, FusedError> {
        let home = &self.home;
        let dtype = match pass.plan.accumulation {
            Accumulation::AsParameter => home.dtype,
            Accumulation::InFullPrecision => gradient.dtype(),
        };
        let device = &home.site().device;
        let gradient = self
            .terms
            .layout
            .carried(self.path(), gradient, device, dtype)?;
        if home.site().is_host
            && let Some(placement) = self.terms.layout.placement()
        {
            // It is gone from the device before the update begins.
            placement.hand_over();
        }
        Ok(gradient)
    }

    /// Counts a gradient that has arrived on this rank, and is held by the owner from here on.
    fn count_arrival(&self, member: &Membership) -> Hold {
        let bytes = self.terms.bytes();
        let owner = self.terms.layout.owner(self.terms.id);
        if member.rank != owner {
            drop(member.group.ledger.hold(member.rank, bytes));
        }
        member.group.ledger.hold(owner, bytes)
    }

    /// This rank has sent a gradient more: waits while it is too far ahead of the others.
    fn wait_for_others(&self, pass: &Arc<Pass>) {
        let Some(member) = self
            .terms
            .layout
            .among_others()
            .filter(|_| !pass.is_stopped())
        else {
            return;
        };
        let device = member.device();
        let waits = member
            .group
            .flow
            .sent(member.rank, self.terms.bytes_at_home(), || {
                !tap::is_free(device)
            });
        if waits.is_err() {
            pass.give_up(
                "it waits in its backward pass for a rank that waits for it: both compute with one tracked tensor, so \
                 that Burn joins their autodiff graphs, and locks both. Detach what the closure has captured, and give \
                 every rank a tensor of its own",
            );
        }
    }

    /// Refuses the first gradient of the parameter if the device has not computed it: most kernels are launched
    /// for the first time then, and one that fails would spoil whatever is written with its result. With offload each
    /// is asked for, since memory is short there: what waits on the host is read anyway.
    fn prove(&self, gradient: &Tensor<D>) -> Result<(), FusedError> {
        if self.state.lock().proven && self.terms.layout.placement().is_none() {
            return Ok(());
        }
        device::check_written(gradient).map_err(|reason| FusedError::GradientNotComputed {
            path: self.path().to_string(),
            reason,
        })?;
        self.state.lock().proven = true;
        Ok(())
    }
}
