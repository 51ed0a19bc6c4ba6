use backburn_base::caught::catch_message;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::train::{Learner, LearnerModel};

use super::front_end::FrontEnd;
use super::model::FusedModel;
use super::snapshot::snapshot;
use super::swap_slot::no_optimizer;
use crate::error::FusedError;
use crate::fused::Core;

/// A checkout of a learner's model and optimizer by a fused optimizer.
///
/// # Invariants
///
/// While checked out, the learner has a skeleton and an optimizer without states: with a second handle to a weight or
/// a state, the optimizer would copy instead of updating in place.
pub(super) struct Checkout<'a, M: LearnerModel> {
    learner: &'a mut Learner<FusedModel<M>>,
    front_end: FrontEnd<M>,
}

impl<'a, M: LearnerModel> Checkout<'a, M> {
    /// Fuses the learner's model and optimizer with `fuse`. If it fails, the learner keeps both.
    pub(super) fn new(
        learner: &'a mut Learner<FusedModel<M>>,
        fuse: impl FnOnce(M, ModuleOptimizer) -> Result<FrontEnd<M>, FusedError>,
    ) -> Result<Self, FusedError> {
        let front_end = fuse(learner.model().into_inner(), optimizer(learner))?;
        swap(learner, front_end.core().skeleton(), no_optimizer());
        Ok(Self { learner, front_end })
    }

    pub(super) fn core(&self) -> &Core<M> {
        self.front_end.core()
    }

    pub(super) fn front_end_and_learner(
        &mut self,
    ) -> (&mut FrontEnd<M>, &mut Learner<FusedModel<M>>) {
        (&mut self.front_end, self.learner)
    }

    /// Runs `read` on the learner with its current model and optimizer. On asynchronous devices it gets a snapshot of the
    /// optimizer, so that a record saved on another thread does not contain later updates.
    pub(super) fn with_complete_learner(&mut self, read: impl FnOnce(&Learner<FusedModel<M>>)) {
        if self.core().is_asynchronous() {
            let optimizer = snapshot(|| self.core().optimizer_record());
            swap(self.learner, self.front_end.core().model(), optimizer);
            read(self.learner);
            let skeleton = self.core().skeleton();
            swap(self.learner, skeleton, no_optimizer());
            return;
        }
        let model = self.core().model();
        let core = self.front_end.core_mut();
        let optimizer = core.optimizer_with_all_states();
        core.replace_optimizer(no_optimizer());
        swap(self.learner, model, optimizer);
        read(self.learner);
        let skeleton = self.core().skeleton();
        let (_, optimizer) = swap(self.learner, skeleton, no_optimizer());
        self.front_end.core_mut().replace_optimizer(optimizer);
    }

    /// Returns the model to the learner, and drops the optimizer: a launch returns only the model.
    ///
    /// # Errors
    ///
    /// If the model can't be exported, because a device with parameters is lost. The learner then has a model without weights.
    pub(super) fn end(self) -> Result<(), String> {
        let model = catch_message(|| self.core().model())?;
        swap(self.learner, model, no_optimizer());
        Ok(())
    }
}

/// Returns a clone of the optimizer of `learner`, which shares its states.
pub(super) fn optimizer<M: LearnerModel>(learner: &mut Learner<FusedModel<M>>) -> ModuleOptimizer {
    let model = learner.model().into_inner();
    let (model, optimizer) = swap(learner, model, no_optimizer());
    swap(learner, model, optimizer.clone());
    optimizer
}

/// Replaces the optimizer of `learner`.
pub(super) fn set_optimizer<M: LearnerModel>(
    learner: &mut Learner<FusedModel<M>>,
    optimizer: ModuleOptimizer,
) {
    let model = learner.model().into_inner();
    swap(learner, model, optimizer);
}

/// Swaps the model and the optimizer of `learner`, and returns the old ones.
fn swap<M: LearnerModel>(
    learner: &mut Learner<FusedModel<M>>,
    model: M,
    optimizer: ModuleOptimizer,
) -> (M, ModuleOptimizer) {
    let swap_slot = learner.model().swap_slot().clone();
    swap_slot.put(model, optimizer);
    learner.optimizer_step(GradientsParams::new());
    swap_slot
        .take()
        .expect("the learner's model has made the swap")
}
