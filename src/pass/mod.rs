//! One forward and backward pass: state that all of its threads share.
//!
//! A [`Session`] lasts as long as its model is attached, and holds the current pass. A [`Scope`] is the position of a
//! thread in a pass, and the only thread-local state of this module.

mod block_order;
mod blocks;
mod config;
mod context;
mod drawing;
mod observations;
mod pending;
mod reads;
mod scope;
mod session;
mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::optim::GradientsParams;
use parking_lot::Mutex;

use crate::caught::catch;
use crate::error::FusedError;
use crate::lock;
use crate::observer::Observers;
use crate::policy::GradientPipeline;
use crate::random::Stream;
use crate::replica::Membership;

pub(crate) use block_order::{BlockOrder, BlockPrefetch};
pub(crate) use blocks::{BlockMode, Blocks};
pub use config::GradientCheckpointingConfig;
pub use context::{StepContext, scale_loss};
use drawing::Forward;
pub(crate) use drawing::{Drawn, RandomRun};
pub(crate) use observations::Observations;
pub(crate) use pending::{Graph, PendingCount, PendingGradient, Readers};
pub(crate) use reads::Reads;
pub(crate) use scope::{ReadMode, Scope};
pub(crate) use session::{Order, PassGuard, Session};
use stage::Failed;
pub(crate) use stage::{Closure, FailedIn, Failure, Stage};

/// A pass, from the closure that computes the loss to the last gradient.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) pipeline: GradientPipeline,
    /// The autodiff graph that the closure records in.
    pub(crate) graph: Arc<Graph>,
    /// The stage of the pass.
    pub(crate) stage: Mutex<Stage>,
    pub(crate) closure: Closure,
    /// `true` after the loss was scaled; `None` if the closure need not scale it.
    scaled: Option<AtomicBool>,
    /// Each running hook holds a clone.
    hooks: Arc<()>,
    /// The random numbers of both passes, if this is one of two passes of a step.
    pub(crate) twice: Option<Stream>,
    /// The rank and its group, if there are several ranks.
    pub(crate) among: Option<Membership>,
    /// The gradients of the ordinary leaves, from the backward pass until they are applied.
    pub(crate) leaf_gradients: Mutex<GradientsParams>,
    /// The lock of the random generators while the forward pass holds it.
    forward: Mutex<Option<Forward>>,
    /// The blocks under gradient checkpointing.
    pub(crate) blocks: Blocks,
    /// The observers, if there are any. They receive the events of updates on the thread of the backward pass.
    pub(crate) observers: Option<Arc<Observers>>,
}

impl Pass {
    /// Fails the pass with `failure`, unless it has failed before. A deadlock replaces an earlier failure.
    pub(crate) fn fail(&self, part: FailedIn, failure: impl Into<Failure>) {
        let failure = failure.into();
        let mut stage = self.stage.lock();
        if let Stage::Forward | Stage::Backward = *stage {
            *stage = Stage::Failed(Failed::default());
        }
        if let Stage::Failed(failed) = &mut *stage {
            failed.in_update |= part == FailedIn::Update;
            if failed.by.is_none() || matches!(failure, Failure::Deadlock(_)) {
                failed.by = Some(failure);
            }
        }
    }

    /// Returns `true` if an update has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Failed(failed) if failed.in_update)
    }

    /// Runs `work` in this part of the pass; a panic fails the pass. In Burn's backward pass the panic is stored until
    /// the end, so that Burn drops the graph. If the closure runs the backward pass itself, the panic resumes
    /// immediately.
    pub(crate) fn guarded<R: Default>(&self, part: FailedIn, work: impl FnOnce() -> R) -> R {
        let in_backward = part == FailedIn::Backward;
        if in_backward && self.closure == Closure::Backward {
            return work();
        }
        catch(work).unwrap_or_else(|panic| {
            let by = |failed: &Failed| matches!(failed.by, Some(Failure::Deadlock(_)));
            let is_deadlock = matches!(&*self.stage.lock(), Stage::Failed(failed) if by(failed));
            if in_backward && is_deadlock {
                panic.resume();
            }
            self.fail(part, panic);
            R::default()
        })
    }

    /// Returns `true` if a gradient may still be applied.
    pub(crate) fn admits(&self) -> bool {
        let unscaled = |scaled: &AtomicBool| !scaled.load(Ordering::Relaxed);
        if self.scaled.as_ref().is_some_and(unscaled) {
            self.fail(FailedIn::Backward, FusedError::LossNotScaled);
        }
        !matches!(*self.stage.lock(), Stage::Failed(_))
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Failed(_))
    }

    /// Takes the failure of the pass, if there is one.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        match &mut *self.stage.lock() {
            Stage::Failed(failed) => failed.by.take(),
            _ => None,
        }
    }

    /// Calls the hooks for the parameter at `path`.
    pub(crate) fn call_hooks<R>(self: &Arc<Self>, path: &str, call: impl FnOnce() -> R) -> R {
        lock::check_none_held("a hook is called");
        let _running = self.hooks.clone();
        let _scope = Scope::hook(self, path).enter();
        call()
    }

    /// Returns `true` if a hook is running, on any thread.
    pub(crate) fn is_in_hook(&self) -> bool {
        Arc::strong_count(&self.hooks) > 1
    }

    /// Takes the loss scale, and marks the loss as scaled.
    fn take_scale(&self) -> Option<f64> {
        self.scaled.as_ref()?.store(true, Ordering::Relaxed);
        self.pipeline.scale
    }
}
