use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use super::Slot;
use super::parameter::ParameterSlot;
use super::stage::{Outcome, Stage};
use crate::memory::{self, Category};
use crate::pass::{self, Owed, Pass};
use crate::policy::PartialSum;
use crate::replica::Hold;
use crate::tap::{GradientSink, Passed};

/// Where the gradient of one tap of a parameter arrives.
#[derive(Debug)]
pub(super) struct Arrival<const D: usize> {
    pub(super) slot: Arc<ParameterSlot<D>>,
    pub(super) pass: Arc<Pass>,
    pub(super) owed: Owed,
    /// Counts a value that was gathered from its owner, as long as the graph has it.
    pub(super) _gathered: Option<Hold>,
}

impl<const D: usize> GradientSink for Arrival<D> {
    fn receive(&self, gradient: DispatchTensor) -> Passed {
        let path = &self.slot.path;
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
        let arrive = || self.slot.arrive(&self.pass, gradient);
        self.pass.guarded(arrive);
        Passed::default()
    }
}

impl<const D: usize> ParameterSlot<D> {
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
            expecting.partial = Some(partial);
            return;
        }
        drop(state);
        let gradient = partial.whole();
        // All through one queue, in the order in which they arrive. A recording knows one thread at a time.
        let placement = self.session.placement();
        let queue = placement.filter(|p| !p.states_wait() && !memory::is_recording());
        let Some(placement) = queue else {
            return self.complete(pass, gradient);
        };
        if !pass.admits() {
            return self.finish(Outcome::Dropped);
        }
        self.finish(Outcome::Leaving);
        let (slot, pass) = (self.clone(), pass.clone());
        placement.send_home(self.copy_bytes(), move || {
            // What has failed elsewhere since, later gradients see.
            match pass.is_stopped() {
                true => slot.finish(Outcome::Dropped),
                false => pass.guarded_in_queue(|| slot.use_up(&pass, gradient)),
            }
        });
    }
}
