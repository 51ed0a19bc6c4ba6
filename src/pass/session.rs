use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{
    BlockPrefetch, Blocks, Closure, GradientCheckpointingConfig, Observations, Pass, Stage,
};
use crate::memory;
use crate::observer::{MemoryObserver, Observers};
use crate::offload::{ActivationOffload, TransferWorkers};
use crate::policy::{GradientPipeline, Update};
use crate::random::{Seeds, StepSeeds, Stream, mix, of_rank};
use crate::replica::Membership;
use crate::tap::Clocks;

/// The order for a pass, for every rank.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) pipeline: GradientPipeline,
    /// The random numbers of both passes, if it is one of two.
    pub(crate) twice: Option<Stream>,
    pub(crate) observers: Observers,
    pub(crate) checkpointing: Arc<GradientCheckpointingConfig>,
}

/// State that the parameters of a model share on one rank while it is attached.
pub(crate) struct Session {
    /// The rank and its group, if there are several ranks.
    among: Option<Membership>,
    /// The pass in flight.
    pub(crate) pass: Mutex<Option<Arc<Pass>>>,
    /// The optimizer. Only the core changes it between two passes, because the core must then restore its extra state.
    pub(crate) update: Arc<Mutex<Update>>,
    pub(crate) clocks: Mutex<Clocks>,
    pub(crate) seeds: Arc<StepSeeds>,
    pub(crate) observations: Arc<Observations>,
}

impl Session {
    pub(crate) fn new(update: Update) -> Self {
        Self::of(None, Arc::new(Mutex::new(update)), Arc::default())
    }

    /// Creates the session of a replica, with the same optimizer. `among` is its membership in a group.
    pub(crate) fn of_replica(&self, among: Option<Membership>) -> Self {
        Self::of(among, self.update.clone(), self.observations.clone())
    }

    fn of(
        among: Option<Membership>,
        update: Arc<Mutex<Update>>,
        observations: Arc<Observations>,
    ) -> Self {
        Self {
            among,
            pass: Mutex::new(None),
            update,
            clocks: Mutex::default(),
            seeds: Arc::default(),
            observations,
        }
    }

    /// Begins the pass of a rank. It ends when the returned guard is dropped, including by a panic.
    pub(crate) fn begin(
        self: &Arc<Self>,
        order: &Order,
        closure: Closure,
        prefetcher: Option<Arc<dyn BlockPrefetch>>,
        transfers: Option<Arc<TransferWorkers>>,
    ) -> PassGuard {
        let Order {
            pipeline,
            twice,
            mut observers,
            checkpointing,
        } = order.clone();
        let stage = match closure {
            Closure::Loss => Stage::Forward,
            Closure::Backward | Closure::Nothing => Stage::Backward,
        };
        let scales = closure == Closure::Backward && pipeline.scale.is_some();
        if memory::is_recording() {
            observers.0.push(Arc::new(MemoryObserver::default()));
        }
        let observers = (!observers.0.is_empty()).then(|| Arc::new(observers));
        let rank = self.among.as_ref().map_or(0, |member| member.rank);
        let seed = twice
            .as_ref()
            .map(|numbers| of_rank(mix(numbers.seed, 0), rank));
        let blocks = Blocks {
            config: checkpointing,
            prefetcher,
            saved: transfers.map(|it| Arc::new(ActivationOffload::new(it, observers.is_some()))),
            block_order: Mutex::default(),
            called: AtomicUsize::new(0),
            running: Arc::default(),
            graph_gc: OnceLock::new(),
            observations: self.observations.clone(),
            seeds: self.seeds.clone(),
            own_seeds: seed.map_or_else(OnceLock::new, |seed| Seeds::from(seed).into()),
            drawn_on: Mutex::default(),
        };
        let pass = Arc::new(Pass {
            pipeline,
            graph: Arc::default(),
            stage: Mutex::new(stage),
            closure,
            scaled: scales.then(AtomicBool::default),
            hooks: Arc::default(),
            twice,
            among: self.among.clone(),
            leaf_gradients: Mutex::default(),
            forward: Mutex::default(),
            blocks,
            observers,
        });
        *self.pass.lock() = Some(pass.clone());
        if let Some(offloaded) = &mut self.update.lock().offloaded {
            offloaded.between_passes();
        }
        let session = self.clone();
        PassGuard { session, pass }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// A guard of the current pass.
pub(crate) struct PassGuard {
    session: Arc<Session>,
    pub(crate) pass: Arc<Pass>,
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        *self.pass.forward.lock() = None;
        let blocks = &self.pass.blocks;
        // Blocks have changed the seed of the generators.
        if !blocks.drawn_on.lock().is_empty()
            && let Ok(Some(_lock)) = self.pass.lock_generators(&[])
        {
            blocks.end();
        }
        // A clone of the model or another thread may still hold the pass, and must find that it is over.
        *self.pass.stage.lock() = Stage::Over;
        *self.session.pass.lock() = None;
        if let Some(offloaded) = &mut self.session.update.lock().offloaded {
            offloaded.between_passes();
        }
    }
}
