use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, GradientCheckpointingStrategy};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use super::ranks::AmongRanks;
use super::{BlockChoice, Closure, Foresight, Learned, Pass, Rehearsal, Stage};
use crate::memory;
use crate::offload::{SavedTensors, Transfers};
use crate::policy::{Plan, Update};
use crate::random::StepSeeds;
use crate::replica::Membership;
use crate::tap::{Census, Clock};

/// What a pass is to do, on every rank.
#[derive(Clone)]
pub(crate) struct Order {
    pub(crate) plan: Plan,
    /// If it is one of two.
    pub(crate) rehearsal: Option<Arc<Rehearsal>>,
    pub(crate) choice: Arc<BlockChoice>,
}

/// What the views of a model share while it is fused, on one rank.
pub(crate) struct Session {
    /// The pass under way.
    pass: Mutex<Option<Arc<Pass>>>,
    update: Arc<Mutex<Update>>,
    clocks: Mutex<Vec<Clock>>,
    census: Mutex<Option<Arc<Census>>>,
    pub(crate) seeds: Arc<StepSeeds>,
    pub(crate) learned: Arc<Learned>,
}

impl Session {
    pub(crate) fn new(update: Update) -> Self {
        Self::of(Arc::new(Mutex::new(update)), Arc::default())
    }

    /// The session of one of several replicas, with the same optimizer.
    pub(crate) fn of_replica(&self) -> Self {
        Self::of(self.update.clone(), self.learned.clone())
    }

    fn of(update: Arc<Mutex<Update>>, learned: Arc<Learned>) -> Self {
        Self {
            pass: Mutex::new(None),
            update,
            clocks: Mutex::new(Vec::new()),
            census: Mutex::new(None),
            seeds: Arc::default(),
            learned,
        }
    }

    /// Begins the pass of a rank, whose closure does this; it ends when what is returned is dropped, by a panic too.
    pub(crate) fn begin(
        self: &Arc<Self>,
        order: &Order,
        closure: Closure,
        foresight: Option<Arc<dyn Foresight>>,
        member: Option<&Membership>,
        transfers: Option<Arc<Transfers>>,
    ) -> Running {
        let Order {
            plan,
            rehearsal,
            choice,
        } = order.clone();
        let stage = match closure {
            Closure::Loss => Stage::Forward,
            Closure::Backward | Closure::Nothing => Stage::Backward,
        };
        let scales = closure == Closure::Backward && plan.scale.is_some();
        let census = self.census.lock().clone();
        if let Some(census) = &census {
            // A pass that failed may have left taps behind, and with them owners of values.
            census.take();
        }
        let is_recorded = memory::is_recording();
        let pass = Arc::new(Pass {
            plan,
            graph: Arc::default(),
            stage: Mutex::new(stage),
            closure,
            thread: OnceLock::new(),
            scaled: scales.then(AtomicBool::default),
            hooks: AtomicUsize::new(0),
            rehearsal,
            among: member.and_then(AmongRanks::of),
            blocks: OnceLock::new(),
            choice,
            foresight,
            saved: transfers.map(|it| Arc::new(SavedTensors::new(it, is_recorded))),
            seeds: self.seeds.clone(),
            learned: self.learned.clone(),
            census,
            is_recorded,
        });
        *self.pass.lock() = Some(pass.clone());
        self.update().waiting.begin();
        let session = self.clone();
        Running { session, pass }
    }

    /// The pass under way.
    pub(crate) fn pass(&self) -> Option<Arc<Pass>> {
        self.pass.lock().clone()
    }

    /// The optimizer and learning rate, locked.
    pub(crate) fn update(&self) -> MutexGuard<'_, Update> {
        self.update.lock()
    }

    /// The clock of this device and strategy.
    pub(crate) fn clock(
        &self,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> MappedMutexGuard<'_, Clock> {
        MutexGuard::map(self.clocks.lock(), |clocks| {
            let fitting = clocks.iter().position(|clock| clock.fits(device, strategy));
            let clock = fitting.unwrap_or_else(|| {
                clocks.push(Clock::new(device, strategy));
                clocks.len() - 1
            });
            &mut clocks[clock]
        })
    }

    pub(crate) fn set_census(&self, census: Option<Arc<Census>>) {
        *self.census.lock() = census;
    }

    pub(crate) fn census(&self) -> Option<Arc<Census>> {
        self.census.lock().clone()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// A pass under way.
pub(crate) struct Running {
    session: Arc<Session>,
    pub(crate) pass: Arc<Pass>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Blocks leave the generators with a seed, but not those of others who keep the turn. Without blocks nobody waits for it:
        // a pass that is refused in the closure of another would wait for that one.
        let among = self.pass.among.as_ref();
        if let Some(blocks) = self.pass.blocks.get()
            && blocks.have_drawn()
            && let Ok(_turn) = among.map(AmongRanks::take_turn).transpose()
        {
            blocks.end();
        }
        // Whoever still holds the pass (a clone of the model, another thread) is told.
        *self.pass.stage.lock() = Stage::Over;
        *self.session.pass.lock() = None;
        self.session.update().waiting.begin();
    }
}
