use std::sync::Arc;

use burn::optim::{ModuleOptimizer, SgdConfig};
use parking_lot::Mutex;

/// Where a model and an optimizer are left for those of Burn's `Learner`.
///
/// `Learner::optimizer_step` hands the model and a mutable reference to the optimizer, which are
/// private, to the model's own `TrainStep::optimize`. If something is [left](Self::put) here, that
/// call [answers](Self::swap) by exchanging both.
#[derive(Clone)]
pub(super) struct SwapSlot<M>(Arc<Mutex<Option<(M, ModuleOptimizer)>>>);

impl<M> SwapSlot<M> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    pub(super) fn put(&self, model: M, optimizer: ModuleOptimizer) {
        *self.0.lock() = Some((model, optimizer));
    }

    pub(super) fn take(&self) -> Option<(M, ModuleOptimizer)> {
        self.0.lock().take()
    }

    /// The learner's side: exchanges its `model` and `optimizer` for those that were left. Gives
    /// `model` back if none were.
    pub(super) fn swap(&self, model: M, optimizer: &mut ModuleOptimizer) -> Result<M, M> {
        let mut waiting = self.0.lock();
        let Some((other, left)) = waiting.take() else {
            return Err(model);
        };
        *waiting = Some((model, std::mem::replace(optimizer, left)));
        Ok(other)
    }
}

/// Stands in for an optimizer that is elsewhere.
pub(super) fn no_optimizer() -> ModuleOptimizer {
    SgdConfig::new().init()
}

impl<M> std::fmt::Debug for SwapSlot<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapSlot").finish_non_exhaustive()
    }
}
