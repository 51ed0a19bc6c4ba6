//! A slot, whatever the rank of its parameter.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use burn::optim::GradientsParams;

use super::home::Home;
use super::meeting::Meeting;
use super::parameter::{ParameterSlot, Which};
use super::report::SlotReport;
use super::stage::{Accumulated, Outcome, Stage};
use crate::device::{Written, sent};
use crate::memory::{self, Category};
use crate::parameters::AnyTensor;
use crate::pass::Pass;
use crate::policy;
use crate::replica::Group;

/// A slot of a parameter of any rank.
pub(crate) trait Slot: Debug + Send + Sync {
    /// Path of the parameter in the module.
    fn path(&self) -> &str;

    /// A value of it as an ordinary trainable parameter holds it.
    fn any_leaf(&self, which: Which<'_>) -> AnyTensor;

    /// Shows the value to a memory recorder.
    fn show(&self);

    /// Uses what has come and what was accumulated, as far as the backward pass has not.
    fn flush(&self, pass: &Arc<Pass>);

    /// Uses the gradient of a parameter that is an ordinary leaf, if it is among these.
    fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams);

    /// Asks whether the device has computed the value.
    fn ask_written(&self, written: &mut Written);

    /// Whether the value comes over from the host for every use, and the device keeps no copy.
    fn comes_over(&self) -> bool;

    /// Brings a value that comes over to the device before it is read.
    fn fetch(&self);

    /// Drops what was brought and not read.
    fn let_go(&self);

    /// Lets the device keep its copy of a value that comes over.
    fn keep_copy(&self);

    /// Bytes of what the device computes with.
    fn copy_bytes(&self) -> usize;

    /// Bytes of the value.
    #[cfg(feature = "cubecl")]
    fn bytes(&self) -> usize;

    /// Whether there is an accumulated gradient.
    fn has_accumulated(&self) -> bool;

    /// Whether a pass that has not ended well has overwritten the sum of gradients.
    fn has_lost_accumulated(&self) -> bool;

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    fn accumulated_is_finite(&self) -> bool;

    /// Lets go of the autodiff graph and says what happened in this pass. If it ended `well`, what it has
    /// accumulated counts; if not, what had been accumulated before it does, where it was not overwritten.
    fn end(&self, well: bool) -> SlotReport;

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    fn drop_accumulated(&self);

    /// The optimizer has another state: forgets all that was accumulated, there too.
    fn forget_group(&self);

    /// Whether the optimizer state holds gradients of a group that has not ended.
    fn has_begun_group(&self) -> bool;

    /// The optimizer state holds such gradients.
    fn begin_group(&self);

    /// Lets this slot and those of the other ranks share their parameter: `slots` has one a rank.
    fn meet(&self, slots: &[Arc<dyn Slot>], group: &Arc<Group>);

    /// Takes over what another slot has accumulated.
    fn copy_accumulated(&self, from: &Arc<dyn Slot>);

    /// For downcasting to the rank of the parameter.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<const D: usize> Slot for ParameterSlot<D> {
    fn path(&self) -> &str {
        &self.path
    }

    fn any_leaf(&self, which: Which<'_>) -> AnyTensor {
        self.leaf(which).into()
    }

    fn show(&self) {
        if let Some(value) = &self.state.lock().value {
            memory::show(Category::Parameter, value);
        }
    }

    fn flush(&self, pass: &Arc<Pass>) {
        let mut state = self.state.lock();
        let arrived = match &mut state.stage {
            Stage::Complete(_) => return,
            // A use that the loss does not depend on.
            Stage::Expecting(expecting) => {
                expecting.tapped = None;
                expecting.partial.take()
            }
            Stage::Unread => None,
        };
        drop(state);
        if let Some(partial) = arrived {
            return self.complete(pass, partial.whole());
        }
        match self.share.get() {
            Some(share) if pass.admits() => self.share_gradient(share, pass, None),
            Some(_) => {}
            None => self.use_gradients(pass, Vec::new()),
        }
    }

    fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams) {
        match gradients.remove::<D>(self.id) {
            Some(gradient) => self.complete(pass, gradient),
            None => self.flush(pass),
        }
    }

    fn ask_written(&self, written: &mut Written) {
        let state = self.state.lock();
        if !self.is_owner() && state.value.is_none() {
            return;
        }
        written.ask(
            &self.path,
            state.copy.as_ref().unwrap_or(&self.held(&state)),
        );
    }

    fn comes_over(&self) -> bool {
        matches!(&self.home, Home::Host(home) if !home.keeps_copy())
    }

    fn fetch(&self) {
        let mut state = self.state.lock();
        if let Home::Host(home) = &self.home
            && state.copy.is_none()
        {
            // If it fails, the read that needs it says so.
            let value = state.value.clone();
            state.copy = value.and_then(|value| self.come_over(home, value).ok());
        }
    }

    fn let_go(&self) {
        // Whoever is at it takes the copy away itself.
        if self.comes_over()
            && let Some(mut state) = self.state.try_lock()
        {
            state.copy = None;
        }
    }

    fn keep_copy(&self) {
        if let Home::Host(home) = &self.home {
            home.keep_copy();
        }
    }

    fn copy_bytes(&self) -> usize {
        self.likeness().bytes()
    }

    #[cfg(feature = "cubecl")]
    fn bytes(&self) -> usize {
        match &self.home {
            Home::Device => self.likeness().bytes(),
            Home::Host(_) => {
                let value = self.value();
                value.shape().num_elements() * value.dtype().size()
            }
        }
    }

    fn has_accumulated(&self) -> bool {
        self.at_owner(|state| !matches!(state.accumulated, Accumulated::Nothing))
    }

    fn has_lost_accumulated(&self) -> bool {
        self.at_owner(|state| matches!(state.accumulated, Accumulated::Overwritten))
    }

    fn accumulated_is_finite(&self) -> bool {
        self.at_owner(|state| match &state.accumulated {
            Accumulated::Sum(sum) => policy::is_finite(sum),
            _ => true,
        })
    }

    fn end(&self, well: bool) -> SlotReport {
        self.let_go();
        self.leave_meeting();
        let mut state = self.state.lock();
        let state = &mut *state;
        let stage = std::mem::take(&mut state.stage);
        let Stage::Complete(outcome) = stage else {
            return SlotReport::default();
        };
        let report = outcome.report();
        match outcome {
            Outcome::Added(sum) => {
                if well {
                    state.accumulated = Accumulated::Sum(sum);
                }
            }
            // The state of the optimizer does not come back from an update.
            Outcome::Began => state.accumulated = Accumulated::InOptimizerState,
            Outcome::Updated { .. } => {
                if well || matches!(state.accumulated, Accumulated::InOptimizerState) {
                    state.accumulated = Accumulated::Nothing;
                }
            }
            Outcome::Vetoed => {
                if well && matches!(state.accumulated, Accumulated::Sum(_)) {
                    state.accumulated = Accumulated::Nothing;
                }
            }
            Outcome::Leaving | Outcome::Shared { .. } | Outcome::Measured | Outcome::Dropped => {}
        }
        report
    }

    fn drop_accumulated(&self) {
        self.at_owner(|state| {
            if let Accumulated::Sum(_) | Accumulated::Overwritten = state.accumulated {
                state.accumulated = Accumulated::Nothing;
            }
        });
    }

    fn forget_group(&self) {
        self.at_owner(|state| state.accumulated = Accumulated::Nothing);
    }

    fn has_begun_group(&self) -> bool {
        self.at_owner(|state| matches!(state.accumulated, Accumulated::InOptimizerState))
    }

    fn begin_group(&self) {
        self.at_owner(|state| state.accumulated = Accumulated::InOptimizerState);
    }

    fn meet(&self, slots: &[Arc<dyn Slot>], group: &Arc<Group>) {
        let slots = slots.iter().map(|slot| {
            let slot = slot.clone().into_any().downcast::<Self>();
            slot.expect("a parameter has the same rank in every replica")
        });
        Meeting::of(&slots.collect::<Vec<_>>(), group);
    }

    fn copy_accumulated(&self, from: &Arc<dyn Slot>) {
        if let Ok(from) = from.clone().into_any().downcast::<Self>() {
            let accumulated = from.state.lock().accumulated.clone();
            let waits_on = match self.session.placement() {
                Some(placement) => placement.host().clone(),
                None => self.likeness().device.clone(),
            };
            self.state.lock().accumulated = match accumulated {
                Accumulated::Sum(sum) => Accumulated::Sum(Box::new(sent(*sum, &waits_on))),
                other => other,
            };
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
