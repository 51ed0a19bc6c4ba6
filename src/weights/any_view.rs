//! A view, whatever the rank of its parameter.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use burn::optim::GradientsParams;

use super::any_home::AnyHome;
use super::report::ParameterReport;
use super::restored::{Place, Value};
use super::stage::Stage;
use super::terms::Terms;
use super::view::View;
use crate::device::Written;
use crate::layout::Holding;
use crate::parameters::AnyTensor;
use crate::pass::Pass;

/// A view of a parameter of any rank.
pub(crate) trait AnyView: Any + Debug + Send + Sync {
    /// On which terms the rank has the parameter.
    fn terms(&self) -> &Terms;

    fn home(&self) -> &dyn AnyHome;

    /// A value of it as an ordinary trainable parameter holds it.
    fn any_leaf(&self, value: Value, place: Place) -> AnyTensor;

    /// The current one, where the model computes, or what says that it is gone.
    fn any_leaf_or_gone(&self) -> AnyTensor;

    /// Uses what has come and what was accumulated, as far as the backward pass has not.
    fn flush(&self, pass: &Arc<Pass>);

    /// Uses the gradient of a parameter that is an ordinary leaf, if it is among these.
    fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams);

    /// Asks whether the device has computed the value.
    fn ask_written(&self, written: &mut Written);

    /// Brings a copy before it is read.
    fn fetch(&self);

    /// Drops what came for a read.
    fn let_go(&self);

    /// Lets go of the autodiff graph and says what happened in this pass, which has ended `well` on all ranks or has
    /// not.
    fn end(&self, well: bool) -> ParameterReport;
}

impl<const D: usize> AnyView for View<D> {
    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn home(&self) -> &dyn AnyHome {
        &*self.home
    }

    fn any_leaf(&self, value: Value, place: Place) -> AnyTensor {
        self.leaf(value, place).into()
    }

    fn any_leaf_or_gone(&self) -> AnyTensor {
        self.leaf_or_gone().into()
    }

    fn flush(&self, pass: &Arc<Pass>) {
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

    fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams) {
        match gradients.remove::<D>(self.terms.id) {
            Some(gradient) => self.complete(pass, gradient),
            None => AnyView::flush(self, pass),
        }
    }

    fn ask_written(&self, written: &mut Written) {
        if let Some(copy) = &self.state.lock().copy {
            written.ask(self.path(), &copy.value);
        }
        if let Some(value) = self.home.find().filter(|_| self.terms.owns()) {
            written.ask(self.path(), &value);
        }
    }

    fn fetch(&self) {
        // If it fails, the read that needs it says so.
        let _ = self.bring_copy();
    }

    fn let_go(&self) {
        View::let_go(self);
    }

    fn end(&self, well: bool) -> ParameterReport {
        let shares = self.terms.given == Holding::Shared;
        if !shares {
            View::let_go(self);
        }
        let stage = std::mem::take(&mut self.state.lock().stage);
        let mut report = self.home.commit(well);
        report.received |= matches!(stage, Stage::Answered { received: true });
        if !shares {
            self.refresh_copy();
        }
        report
    }
}
