//! One forward and backward pass: state that all of its threads share.
//!
//! A [`Session`] lasts as long as its model is attached, and holds the current pass. A [`Scope`] is the position of a
//! thread in a pass, and the only thread-local state of this module.

mod block_order;
mod blocks;
mod config;
mod context;
mod numbers;
mod observer;
mod reads;
mod scope;
mod stage;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use backburn_base::caught::catch;
use backburn_memory as memory;
use burn::optim::GradientsParams;
use parking_lot::Mutex;

use crate::error::FusedError;
use crate::offload::{ActivationOffload, TransferWorkers};
use crate::policy::GradientPipeline;
use crate::random::{Seeds, StepSeeds, mix, seed_of_rank};
use crate::replica::Membership;
use crate::shared_optimizer::SharedOptimizer;
use crate::tap::{Clocks, next_operation};
use crate::threads::lock;

pub(crate) use block_order::{BlockOrder, BlockPrefetch};
pub(crate) use blocks::{BlockMode, Blocks};
pub use config::GradientCheckpointingConfig;
pub use context::{StepContext, scale_loss};
pub(crate) use numbers::{NumberSource, RandomRun, StepNumbers, lock_generators};
use numbers::{Observations, PassNumbers};
pub(crate) use observer::{MemoryObserver, Observers};
pub use observer::{StepEvent, StepObserver};
pub(crate) use reads::{BlockReads, Graph, PendingCount, Reads};
pub(crate) use scope::{ReadMode, Scope};
pub(crate) use stage::{ClosureKind, Failed, FailedIn, Failure, Stage};

/// The state of one rank in a pass, from the closure that computes the loss to the last gradient. Its threads share it.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) pipeline: GradientPipeline,
    /// The number of operations of autodiff in the process when the pass began.
    pub(crate) begun: u64,
    /// The autodiff graph that the closure records in.
    pub(crate) graph: Arc<Graph>,
    pub(crate) stage: Mutex<Stage>,
    pub(crate) closure_kind: ClosureKind,
    /// `true` after the closure has scaled its loss, or if it need not.
    scaled: AtomicBool,
    /// `true` after a gradient of a parameter has arrived.
    pub(crate) has_received: AtomicBool,
    /// Each running hook holds a clone.
    running_hooks: Arc<()>,
    /// The random numbers.
    pub(crate) numbers: PassNumbers,
    /// The rank and its group, if there are several ranks.
    pub(crate) membership: Option<Membership>,
    /// The gradients of the retained parameters, from the backward pass until they are applied.
    pub(crate) retained_gradients: Mutex<GradientsParams>,
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
    pub(crate) fn update_has_failed(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Failed(failed) if failed.in_update)
    }

    /// Runs `work` in this part of the pass; a panic fails the pass. In Burn's backward pass the panic is stored until the end,
    /// so that Burn drops the graph. A panic of the closure resumes immediately if the closure runs the backward pass itself, or
    /// the pass is over or deadlocked.
    pub(crate) fn guarded<R: Default>(&self, part: FailedIn, work: impl FnOnce() -> R) -> R {
        catch(work).unwrap_or_else(|panic| {
            let is_over = match &*self.stage.lock() {
                Stage::Over => true,
                Stage::Failed(failed) => matches!(failed.by, Some(Failure::Deadlock(_))),
                Stage::Forward | Stage::Backward => false,
            };
            let resumes = is_over || self.closure_kind == ClosureKind::Backward;
            if resumes && part == FailedIn::Closure {
                panic.resume();
            }
            self.fail(part, panic);
            R::default()
        })
    }

    /// Fails the pass if a closure that runs the backward pass itself has not scaled its loss.
    pub(crate) fn check_scaled(&self) {
        if !self.scaled.load(Ordering::Relaxed) {
            self.fail(FailedIn::Closure, FusedError::LossNotScaled);
        }
    }

    /// Returns `true` after the end of the pass. Then it reports no failure.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Over)
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Failed(_))
    }

    /// Begins the backward pass, after the random numbers of the forward pass have ended.
    ///
    /// # Errors
    ///
    /// If the pass has failed, for example by a backward pass inside the closure.
    pub(crate) fn begin_backward(&self) -> Result<(), FusedError> {
        let failure = match &mut *self.stage.lock() {
            Stage::Failed(failed) => failed.by.take(),
            stage => {
                *stage = Stage::Backward;
                None
            }
        };
        failure.map_or(Ok(()), Failure::into_result)?;
        self.end_forward_numbers();
        Ok(())
    }

    /// Calls the hooks for the parameter at `path`.
    pub(crate) fn call_hooks<R>(self: &Arc<Self>, path: &str, call: impl FnOnce() -> R) -> R {
        lock::check_none_held("a hook is called");
        let _running = self.running_hooks.clone();
        let _scope = Scope::enter_pass(self, ReadMode::Hook(Some(path.into())));
        call()
    }

    /// Returns `true` if a hook is running, on any thread.
    pub(crate) fn is_in_hook(&self) -> bool {
        Arc::strong_count(&self.running_hooks) > 1
    }

    /// Marks the loss as scaled, and returns the scale by which the closure must multiply it.
    pub(crate) fn scale_of_loss(&self) -> Option<f64> {
        self.scaled.store(true, Ordering::Relaxed);
        let scale = self.pipeline.scale;
        scale.filter(|_| self.closure_kind == ClosureKind::Backward)
    }
}

/// The settings of a pass, the same on each rank.
#[derive(Clone)]
pub(crate) struct PassSettings {
    pub(crate) pipeline: GradientPipeline,
    pub(crate) numbers: StepNumbers,
    pub(crate) observers: Observers,
    pub(crate) checkpointing: GradientCheckpointingConfig,
    pub(crate) closure_kind: ClosureKind,
}

/// State that the parameters of a model share on one rank while it is attached.
pub(crate) struct Session {
    /// The rank and its group, if there are several ranks.
    membership: Option<Membership>,
    /// The pass in flight.
    pub(crate) pass: Mutex<Option<Arc<Pass>>>,
    /// The optimizer. Only the core changes it between two passes, because the core must then restore its extra state.
    pub(crate) optimizer: Arc<Mutex<SharedOptimizer>>,
    pub(crate) clocks: Mutex<Clocks>,
    pub(crate) seeds: Arc<StepSeeds>,
    pub(crate) observations: Arc<Observations>,
}

impl Session {
    pub(crate) fn new(optimizer: SharedOptimizer) -> Self {
        Self {
            membership: None,
            pass: Mutex::default(),
            optimizer: Arc::new(Mutex::new(optimizer)),
            clocks: Mutex::default(),
            seeds: Arc::default(),
            observations: Arc::default(),
        }
    }

    /// Creates the session of a replica, with the same optimizer. `membership` is its membership in a group.
    pub(crate) fn of_replica(&self, membership: Option<Membership>) -> Self {
        Self {
            membership,
            pass: Mutex::default(),
            optimizer: self.optimizer.clone(),
            clocks: Mutex::default(),
            seeds: Arc::default(),
            observations: self.observations.clone(),
        }
    }

    /// Creates the session of another model with the same optimizer, on the same device. A clone of the previous model then finds no
    /// pass. The other model may draw random numbers where the previous one drew none.
    pub(crate) fn of_other_model(&self) -> Self {
        Self {
            clocks: Mutex::new(self.clocks.lock().clone()),
            seeds: self.seeds.clone(),
            observations: Arc::default(),
            ..self.of_replica(None)
        }
    }

    /// Returns the scope of this thread, if it takes part in the pass in flight.
    pub(crate) fn scope(&self) -> Option<Scope> {
        let pass = self.pass.lock().clone()?;
        Scope::current().filter(|scope| Arc::ptr_eq(&scope.pass, &pass))
    }

    /// Begins the pass of a rank, which must [end](Self::end).
    pub(crate) fn begin(
        &self,
        settings: &PassSettings,
        prefetcher: Option<Arc<dyn BlockPrefetch>>,
        transfers: Option<Arc<TransferWorkers>>,
    ) -> Arc<Pass> {
        let PassSettings {
            pipeline,
            numbers,
            mut observers,
            checkpointing,
            closure_kind,
        } = settings.clone();
        let stage = match closure_kind {
            ClosureKind::Loss => Stage::Forward,
            ClosureKind::Backward | ClosureKind::Nothing => Stage::Backward,
        };
        let scales = closure_kind == ClosureKind::Backward && pipeline.scale.is_some();
        if memory::is_recording() {
            observers.0.push(Arc::new(MemoryObserver::default()));
        }
        let observers = (!observers.0.is_empty()).then(|| Arc::new(observers));
        let rank = self.membership.as_ref().map_or(0, |member| member.rank);
        // The blocks of both passes draw the same numbers.
        let stream = numbers.stream.as_ref().filter(|_| numbers.repeats);
        let seed = stream.map(|stream| seed_of_rank(mix(stream.seed, 0), rank));
        let blocks = Blocks {
            config: checkpointing,
            prefetcher,
            input_offload: transfers
                .map(|it| Arc::new(ActivationOffload::new(it, observers.is_some()))),
            block_order: Mutex::default(),
            called: AtomicUsize::new(0),
            running_blocks: Arc::default(),
            graph_gc: OnceLock::new(),
            observations: self.observations.clone(),
            step_seeds: self.seeds.clone(),
            block_seeds: seed.map_or_else(OnceLock::new, |seed| Seeds::from(seed).into()),
            drawn_on: Mutex::default(),
        };
        let pass = Arc::new(Pass {
            pipeline,
            begun: next_operation(),
            graph: Arc::default(),
            stage: Mutex::new(stage),
            closure_kind,
            scaled: AtomicBool::new(!scales),
            has_received: AtomicBool::new(false),
            running_hooks: Arc::default(),
            numbers: PassNumbers::new(numbers),
            membership: self.membership.clone(),
            retained_gradients: Mutex::default(),
            blocks,
            observers,
        });
        *self.pass.lock() = Some(pass.clone());
        pass
    }

    /// Ends the pass of a rank, which is [over](Stage::Over). A pass that `commits` adds to the observations.
    pub(crate) fn end(&self, pass: &Pass, commits: bool) {
        pass.release_generators();
        if commits && let Some(since) = pass.numbers.observed_since.get() {
            pass.record_observations(*since);
        }
        *self.pass.lock() = None;
        if let Some(offloaded) = &mut self.optimizer.lock().offloaded {
            offloaded.drop_prefetches();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}
