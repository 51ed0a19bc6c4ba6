//! A view, whatever the rank of its parameter.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use burn::optim::GradientsParams;

use super::report::ParameterReport;
use super::stage::{Accumulated, Stage};
use super::view::{View, Which};
use crate::device::Written;
use crate::layout::Holding;
use crate::parameters::AnyTensor;
use crate::pass::Pass;

/// A view of a parameter of any rank, and what is asked of its home.
pub(crate) trait AnyView: Debug + Send + Sync {
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

    /// What the rank has of it.
    fn any_holding(&self) -> Holding;

    /// Whether the value waits on the host.
    fn waits(&self) -> bool;

    /// Brings a copy before it is read.
    fn any_fetch(&self);

    /// Drops what came for a read.
    fn any_let_go(&self);

    /// A copy that would come for a read stays on the device from now on.
    fn any_keep_copy(&self);

    /// Bytes of what the device computes with.
    fn copy_bytes(&self) -> usize;

    /// Bytes of the value.
    #[cfg(feature = "cubecl")]
    fn bytes(&self) -> usize;

    /// Bytes of weights that the rank holds between two passes.
    fn any_bytes_at_rest(&self) -> usize;

    /// Whether there is an accumulated gradient.
    fn has_accumulated(&self) -> bool;

    /// Whether a pass that has not ended well has overwritten the sum of gradients.
    fn has_lost_accumulated(&self) -> bool;

    /// Whether all elements of the sum of gradients are finite, if there is one; waits for the device.
    fn accumulated_is_finite(&self) -> bool;

    /// Lets go of the autodiff graph and says what happened in this pass, which has ended `well` on all ranks or has
    /// not.
    fn end(&self, well: bool) -> ParameterReport;

    /// Forgets the sum of gradients. Those that the state of the optimizer holds stay.
    fn drop_accumulated(&self);

    /// The optimizer has another state: forgets all that was accumulated, there too.
    fn forget_group(&self);

    /// Whether the optimizer state holds gradients of a group that has not ended.
    fn has_begun_group(&self) -> bool;

    /// The optimizer state holds such gradients.
    fn begin_group(&self);

    /// Takes over what the home of another view of the same parameter has accumulated.
    fn copy_accumulated(&self, from: &Arc<dyn AnyView>);

    /// For downcasting to the rank of the parameter.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

impl<const D: usize> AnyView for View<D> {
    fn path(&self) -> &str {
        View::path(self)
    }

    fn any_leaf(&self, which: Which<'_>) -> AnyTensor {
        self.leaf(which).into()
    }

    fn show(&self) {
        self.home.show();
    }

    fn flush(&self, pass: &Arc<Pass>) {
        View::flush(self, pass);
    }

    fn deliver(&self, pass: &Arc<Pass>, gradients: &mut GradientsParams) {
        match gradients.remove::<D>(self.id()) {
            Some(gradient) => self.complete(pass, gradient),
            None => View::flush(self, pass),
        }
    }

    fn ask_written(&self, written: &mut Written) {
        if let Some(copy) = self.copy(&self.state.lock()) {
            written.ask(View::path(self), copy);
        }
        if let Some(value) = self.home.find().filter(|_| self.owns()) {
            written.ask(View::path(self), &value);
        }
    }

    fn any_holding(&self) -> Holding {
        self.holding()
    }

    fn waits(&self) -> bool {
        self.home.site.is_host
    }

    fn any_fetch(&self) {
        self.fetch();
    }

    fn any_let_go(&self) {
        self.let_go();
    }

    fn any_keep_copy(&self) {
        self.keep_copy();
    }

    fn copy_bytes(&self) -> usize {
        self.likeness().bytes()
    }

    #[cfg(feature = "cubecl")]
    fn bytes(&self) -> usize {
        self.home.likeness.bytes()
    }

    fn any_bytes_at_rest(&self) -> usize {
        self.bytes_at_rest()
    }

    fn has_accumulated(&self) -> bool {
        !matches!(self.home.state.lock().accumulated, Accumulated::Nothing)
    }

    fn has_lost_accumulated(&self) -> bool {
        let accumulated = &self.home.state.lock().accumulated;
        matches!(accumulated, Accumulated::Overwritten)
    }

    fn accumulated_is_finite(&self) -> bool {
        self.home.sum_is_finite()
    }

    fn end(&self, well: bool) -> ParameterReport {
        self.let_go();
        let stage = std::mem::take(&mut self.state.lock().stage);
        let mut report = self.home.commit(well);
        report.received |= matches!(stage, Stage::Answered { received: true });
        self.take_over();
        report
    }

    fn drop_accumulated(&self) {
        self.home.drop_sum();
    }

    fn forget_group(&self) {
        self.home.state.lock().accumulated = Accumulated::Nothing;
    }

    fn has_begun_group(&self) -> bool {
        let accumulated = &self.home.state.lock().accumulated;
        matches!(accumulated, Accumulated::InOptimizerState)
    }

    fn begin_group(&self) {
        self.home.state.lock().accumulated = Accumulated::InOptimizerState;
    }

    fn copy_accumulated(&self, from: &Arc<dyn AnyView>) {
        if let Ok(from) = from.clone().into_any().downcast::<Self>() {
            self.home.take_over(&from.home);
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
