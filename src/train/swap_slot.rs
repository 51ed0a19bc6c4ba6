use std::sync::Arc;

use burn::optim::{ModuleOptimizer, SgdConfig};
use parking_lot::Mutex;

/// A slot that replaces the private model and optimizer of Burn's `Learner`: its `optimizer_step` passes both to `TrainStep::optimize`
/// of the model, which [swaps](Self::swap) them with those [put](Self::put) here.
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

    /// Swaps the learner's `model` and `optimizer` with those in the slot. Returns `model` as an error if the slot is
    /// empty.
    pub(super) fn swap(&self, model: M, optimizer: &mut ModuleOptimizer) -> Result<M, M> {
        let mut waiting = self.0.lock();
        let Some((other, left)) = waiting.take() else {
            return Err(model);
        };
        *waiting = Some((model, std::mem::replace(optimizer, left)));
        Ok(other)
    }
}

/// Returns an optimizer without states, in place of one that is checked out.
pub(super) fn no_optimizer() -> ModuleOptimizer {
    SgdConfig::new().init()
}

impl<M> std::fmt::Debug for SwapSlot<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapSlot").finish_non_exhaustive()
    }
}
