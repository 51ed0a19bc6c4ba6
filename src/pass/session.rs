use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{Device, GradientCheckpointingStrategy};
use parking_lot::{Mutex, MutexGuard};

use super::{BlockChoice, Blocks, Learned, Pass, Rehearsal, Stage};
use crate::policy::Update;
use crate::random::{StepSeeds, of_rank};
use crate::tap::{Census, Clock};

/// What the views of a model share while it is fused, on one rank.
pub(crate) struct Session {
    /// The pass under way.
    pass: Mutex<Option<Arc<Pass>>>,
    update: Arc<Mutex<Update>>,
    clocks: Mutex<Vec<Clock>>,
    census: Mutex<Option<Arc<Census>>>,
    seeds: Arc<StepSeeds>,
    pub(crate) learned: Arc<Learned>,
}

impl Session {
    pub(crate) fn new(update: Update) -> Self {
        Self {
            pass: Mutex::new(None),
            update: Arc::new(Mutex::new(update)),
            clocks: Mutex::new(Vec::new()),
            census: Mutex::new(None),
            seeds: Arc::default(),
            learned: Arc::default(),
        }
    }

    /// The session of one of several replicas, with the same optimizer.
    pub(crate) fn of_replica(&self) -> Self {
        Self {
            pass: Mutex::new(None),
            update: self.update.clone(),
            clocks: Mutex::new(Vec::new()),
            census: Mutex::new(None),
            seeds: Arc::default(),
            learned: self.learned.clone(),
        }
    }

    /// Starts a pass; it ends when what is returned is dropped, by a panic too.
    pub(crate) fn begin(self: &Arc<Self>, pass: Pass) -> Running {
        let pass = Arc::new(pass);
        *self.pass.lock() = Some(pass.clone());
        if let Some(census) = self.census() {
            // A pass that failed may have left taps behind, and with them owners of values.
            census.take();
        }
        Running {
            session: self.clone(),
            pass,
        }
    }

    /// The blocks of a pass of `rank` that is to begin.
    pub(crate) fn blocks(
        &self,
        choice: BlockChoice,
        rehearsal: Option<&Rehearsal>,
        rank: usize,
    ) -> Blocks {
        let seed = rehearsal.and_then(Rehearsal::block_seed);
        let seed = seed.map(|seed| of_rank(seed, rank));
        Blocks::new(choice, self.learned.clone(), self.seeds.clone(), seed)
    }

    /// The seed for a step on `device`.
    pub(crate) fn next_seed(&self, device: &Device) -> u64 {
        self.seeds.next(device)
    }

    /// The pass under way.
    pub(crate) fn pass(&self) -> Option<Arc<Pass>> {
        self.pass.lock().clone()
    }

    /// The optimizer and learning rate, locked.
    pub(crate) fn update(&self) -> MutexGuard<'_, Update> {
        self.update.lock()
    }

    /// The clock tick of the given index.
    pub(crate) fn tick(
        &self,
        index: usize,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> DispatchTensor {
        self.with_clock(device, strategy, |clock| clock.tick(index))
    }

    /// A tracked tensor that is deeper than the ticks of so many reads.
    pub(crate) fn below(
        &self,
        reads: usize,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
    ) -> DispatchTensor {
        self.with_clock(device, strategy, |clock| clock.below(reads))
    }

    fn with_clock<R>(
        &self,
        device: &Device,
        strategy: GradientCheckpointingStrategy,
        ask: impl FnOnce(&mut Clock) -> R,
    ) -> R {
        let mut clocks = self.clocks.lock();
        let fitting = clocks.iter().position(|clock| clock.fits(device, strategy));
        let clock = fitting.unwrap_or_else(|| {
            clocks.push(Clock::new(device, strategy));
            clocks.len() - 1
        });
        ask(&mut clocks[clock])
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
        if self.pass.blocks.have_drawn()
            && let Ok(_turn) = self.pass.try_take_turn()
        {
            self.pass.blocks.end();
        }
        // Whoever still holds the pass (a clone of the model, another thread) is told.
        *self.pass.stage.lock() = Stage::Over;
        *self.session.pass.lock() = None;
    }
}
