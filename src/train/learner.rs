use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn::train::{Learner, LearnerModel};

use super::exchange::Exchange;
use super::model::FusedModel;

/// Burn's [`Learner`] with the optimizer fused into the backward pass.
///
/// Takes the place of `Learner` in a program; [`launch_fused`](super::LaunchFused::launch_fused)
/// takes that of `launch`.
pub struct FusedLearner<M: LearnerModel> {
    pub(super) learner: Learner<FusedModel<M>>,
    pub(super) exchange: Exchange<M>,
}

impl<M: LearnerModel> FusedLearner<M> {
    /// Create a learner from the same three parts as [`Learner::new`].
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Self {
        let exchange = Exchange::new();
        let model = FusedModel::new(model, exchange.clone());
        Self {
            learner: Learner::new(model, optimizer, lr_scheduler),
            exchange,
        }
    }

    /// Fork the learner's model to the given device, as [`Learner::fork`].
    pub fn fork(&mut self, device: &Device) {
        self.learner.fork(device);
    }

    /// The model, as [`Learner::model`].
    pub fn model(&self) -> M {
        self.learner.model().into_inner()
    }
}
