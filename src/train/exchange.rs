use std::sync::Arc;

use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::train::{Learner, LearnerModel};
use parking_lot::Mutex;

use super::model::FusedModel;

/// The way to the private fields of Burn's `Learner`.
///
/// `Learner::optimizer_step` hands the model and a mutable reference to the optimizer to the
/// model's own `TrainStep::optimize`. With a model and an optimizer left here, that call swaps both
/// for those of the learner.
#[derive(Debug)]
pub(super) struct Exchange<M>(Arc<Mutex<Option<Goods<M>>>>);

struct Goods<M> {
    model: M,
    optimizer: ModuleOptimizer,
}

impl<M: LearnerModel> Exchange<M> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Puts `model` and `optimizer` into the learner and returns those it had.
    pub(super) fn swap(
        &self,
        learner: &mut Learner<FusedModel<M>>,
        model: M,
        optimizer: ModuleOptimizer,
    ) -> (M, ModuleOptimizer) {
        *self.0.lock() = Some(Goods { model, optimizer });
        learner.optimizer_step(GradientsParams::new());
        let goods = self.0.lock().take();
        let Goods { model, optimizer } = goods.expect("the learner's model has made the swap");
        (model, optimizer)
    }

    /// Lets `change` have the optimizer of the learner.
    pub(super) fn change_optimizer(
        &self,
        learner: &mut Learner<FusedModel<M>>,
        change: impl FnOnce(ModuleOptimizer) -> ModuleOptimizer,
    ) {
        let model = learner.model().into_inner();
        let (model, optimizer) = self.swap(learner, model, no_optimizer());
        self.swap(learner, model, change(optimizer));
    }

    /// The learner's side of [`swap`](Self::swap). Gives `model` back if no swap is asked for.
    pub(super) fn answer(&self, model: M, optimizer: &mut ModuleOptimizer) -> Result<M, M> {
        let mut waiting = self.0.lock();
        let Some(goods) = waiting.take() else {
            return Err(model);
        };
        let optimizer = std::mem::replace(optimizer, goods.optimizer);
        *waiting = Some(Goods { model, optimizer });
        Ok(goods.model)
    }
}

/// Stands in for an optimizer that is elsewhere.
pub(super) fn no_optimizer() -> ModuleOptimizer {
    SgdConfig::new().init()
}

impl<M> Clone for Exchange<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> std::fmt::Debug for Goods<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Goods").finish_non_exhaustive()
    }
}
