//! The random numbers of a step, of its forward passes and of its blocks.
//!
//! # Invariants
//!
//! - A step that may draw holds the lock of the generators until no run has to repeat its numbers: to the end of the forward
//!   pass, or of the pass if a block drew or has a CubeCL device, or of the step if it has several ranks or passes.
//! - Ranks draw in turn, and so do blocks on several threads of a closure.
//! - A run without the lock neither seeds the generators nor draws a seed. Its result is compared with that of its repetition.

mod block;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use backburn_base::{caught::catch_message, is_cubecl};
use burn::tensor::Device;
use parking_lot::Mutex;

use super::{Pass, Scope, Session};
use crate::error::FusedError;
use crate::random::{
    GENERATORS, PROGRESS, RandomStream, RngLock, Run, begin_unlocked, mix, seed, seed_of_rank,
    system_seed, unlocked_steps,
};
use crate::threads::lock::is_in_pool;

pub(crate) use block::{NumberSource, RandomRun};

/// Observed draws of random numbers by some code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Draws {
    #[default]
    Unknown,
    Nothing,
    Numbers,
}

/// Facts about a model that were observed in earlier passes, on all ranks.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    reported: Mutex<HashSet<String>>,
    /// Draws of [`BLOCKS`], and of the [`REST`] of the closure.
    draws: Mutex<[Draws; 2]>,
    /// The lock that lets one rank, or one block, draw at a time.
    turns: Arc<Mutex<()>>,
    /// `true` after the holder of the lock made no progress for a timeout. From then on the model waits only if it is known to draw.
    has_timed_out: AtomicBool,
}

/// Index of the draws of blocks.
const BLOCKS: usize = 0;
/// Index of the draws of the closure outside of blocks. They are observed only if the forward pass begins with a seed.
const REST: usize = 1;

impl Observations {
    /// Returns `true` if this message is new.
    pub(crate) fn is_new(&self, reported: String) -> bool {
        self.reported.lock().insert(reported)
    }

    /// Records that a run has drawn random numbers that it must repeat.
    pub(crate) fn record_draws(&self) {
        self.draws.lock()[BLOCKS] = Draws::Numbers;
    }
}

/// The random numbers of a step, the same in all of its passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepNumbers {
    /// `None` if another training has the lock, or nothing is drawn.
    lock: Option<Arc<RngLock>>,
    /// The numbers with which a forward pass begins. Without them it continues those of the program.
    pub(super) stream: Option<RandomStream>,
    /// `true` if the step has two passes, which draw the same numbers.
    pub(crate) repeats: bool,
    /// The record of a step without the lock that may draw, until it ends.
    pub(crate) unlocked: Option<Arc<AtomicUsize>>,
}

impl StepNumbers {
    /// Begins the random numbers of a step on `devices`, in one pass, or in two if it `repeats`.
    ///
    /// A plain step continues the numbers of the program, so its draws can't be observed. A step that has waited for the lock begins
    /// with a seed: the order of its numbers is arbitrary anyway. Then its draws are observed, so a model that draws nothing waits
    /// once.
    ///
    /// # Errors
    ///
    /// If a model that draws can't have the lock and must repeat its numbers, or the device is lost.
    pub(crate) fn begin(
        session: &Session,
        devices: &[Device],
        repeats: bool,
    ) -> Result<Self, FusedError> {
        let observations = &session.observations;
        let is_one_of_several = session.membership.is_some();
        let draws = *observations.draws.lock();
        let may_draw = draws != [Draws::Nothing; 2];
        if !repeats && !is_one_of_several && !may_draw {
            return Ok(Self::default());
        }
        let waits = match observations.has_timed_out.load(Ordering::Relaxed) {
            true => draws.contains(&Draws::Numbers),
            false => may_draw,
        };
        let lock = lock_generators(devices, waits);
        if lock.is_none() && waits && !is_in_pool() {
            observations.has_timed_out.store(true, Ordering::Relaxed);
        }
        if lock.is_none() && repeats && draws.contains(&Draws::Numbers) {
            let place = "the step".to_string();
            return Err(FusedError::RandomNumbersLocked { place });
        }
        let is_observed = |lock: &Arc<RngLock>| lock.waited && draws[REST] == Draws::Unknown;
        let is_seeded = repeats || is_one_of_several || lock.as_ref().is_some_and(is_observed);
        let seed = |device: &Device| match &lock {
            Some(_) => session.seeds.next(device),
            None => system_seed(),
        };
        let stream = || RandomStream::new(devices.to_vec(), seed);
        let stream = is_seeded.then(|| catch_message(stream)).transpose();
        let stream = stream.map_err(|reason| FusedError::DeviceLost {
            device: format!("{:?}", devices[0]),
            reason,
        })?;
        let is_unlocked = lock.is_none() && may_draw;
        Ok(Self {
            lock,
            stream,
            repeats,
            unlocked: is_unlocked.then(begin_unlocked),
        })
    }
}

/// Takes the lock of the generators to draw on `devices`. A step within the closure of another one shares its lock. Returns `None`
/// if another training has it, and keeps it or this thread must not wait.
pub(crate) fn lock_generators(devices: &[Device], waits: bool) -> Option<Arc<RngLock>> {
    // On a thread of a pool, the other step may only be below on the stack.
    let outer = Scope::current().filter(|_| !is_in_pool());
    let shared = outer.and_then(|scope| scope.pass.numbers.generators.lock().clone());
    shared.or_else(|| RngLock::take(&GENERATORS, devices, waits).map(Arc::new))
}

/// The stream that a run draws from since the generators were seeded; `None` if that seed is unknown.
type SinceSeed = Mutex<Option<RandomStream>>;

/// The random numbers of one rank in a pass.
#[derive(Debug, Default)]
pub(crate) struct PassNumbers {
    /// The lock of the generators, to the end of the forward pass, or of the pass if a block drew.
    generators: Mutex<Option<Arc<RngLock>>>,
    /// The numbers with which the forward pass begins; `None` if it continues those of the program.
    pub(crate) stream: Option<RandomStream>,
    /// `true` if the step has two passes, which draw the same numbers.
    pub(crate) repeats: bool,
    /// `true` if the step has begun with the lock.
    began_locked: bool,
    /// Locked by a thread that takes the lock again.
    taking: Mutex<()>,
    /// The number of times that the lock was released. The seed after a release depends on it.
    releases: AtomicU64,
    /// The numbers outside of blocks, in the forward pass.
    rest: SinceSeed,
    /// The turn of this rank, in its forward pass.
    turn: Mutex<Option<RngLock>>,
    /// The turns of blocks on several threads of the closure, while the rank has its turn.
    block_turns: Arc<Mutex<()>>,
    /// Draws of blocks and of the rest that this pass has observed.
    found: Mutex<[Draws; 2]>,
    /// The result of [`unlocked_steps`] at the first seed of the pass. Empty if the pass seeds nothing.
    pub(super) observed_since: OnceLock<Option<usize>>,
}

impl PassNumbers {
    pub(super) fn new(numbers: StepNumbers) -> Self {
        Self {
            began_locked: numbers.lock.is_some(),
            generators: Mutex::new(numbers.lock),
            stream: numbers.stream,
            repeats: numbers.repeats,
            found: Mutex::new([Draws::Nothing, Draws::Unknown]),
            ..Self::default()
        }
    }

    /// Records that the pass makes progress, if others may be waiting for it.
    pub(crate) fn report_progress(&self) {
        if self.generators.lock().is_some() {
            PROGRESS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Seeds the generators with the start of `stream`, for a run whose draws are observed.
    fn start(&self, since_seed: &SinceSeed, stream: RandomStream) {
        self.observed_since.get_or_init(unlocked_steps);
        stream.start();
        *since_seed.lock() = Some(stream);
    }

    /// Ends the turn of a rank, before other ranks are waited for.
    pub(crate) fn end_turn(&self) {
        self.turn.lock().take();
    }
}

impl Pass {
    /// Begins the forward pass with the numbers of `stream`, on this rank.
    ///
    /// # Errors
    ///
    /// If the model is known to draw, and another rank keeps its turn and makes no progress.
    pub(crate) fn begin_forward_numbers(&self, mut stream: RandomStream) -> Result<(), FusedError> {
        let numbers = &self.numbers;
        if numbers.generators.lock().is_none() {
            return Ok(());
        }
        if let Some(member) = &self.membership {
            stream.devices = vec![member.device().clone()];
            stream.seed = seed_of_rank(stream.seed, member.rank);
            let Observations { draws, turns, .. } = &*self.blocks.observations;
            let may_draw = *draws.lock() != [Draws::Nothing; 2];
            match RngLock::take(turns, &stream.devices, may_draw) {
                None if draws.lock().contains(&Draws::Numbers) => {
                    let place = format!("rank {}", member.rank);
                    return Err(FusedError::RandomNumbersLocked { place });
                }
                None => return Ok(()),
                turn => *numbers.turn.lock() = turn,
            }
        }
        numbers.found.lock()[REST] = Draws::Nothing;
        numbers.start(&numbers.rest, stream);
        Ok(())
    }

    /// Ends the random numbers of the forward pass, before other ranks are waited for.
    pub(crate) fn end_forward_numbers(&self) {
        let numbers = &self.numbers;
        let stream = numbers.rest.lock().take();
        if let Some(mut stream) = stream {
            self.observe_draws(REST, &stream);
            stream.advance(Run::OutsideOfBlocks);
        }
        match self.membership {
            Some(_) => numbers.end_turn(),
            // The lock is that of the step. A step inside of the closure shares it.
            None if numbers.repeats => {}
            None if numbers.found.lock()[BLOCKS] == Draws::Numbers => {}
            // Blocks on CubeCL are not observed, so they may draw.
            None if self.blocks.drawn_on.lock().iter().any(is_cubecl) => {}
            None => self.release_generators(),
        }
    }

    /// Observes whether numbers were drawn since the start of `stream`. After the first pass, a CubeCL device is assumed to draw as
    /// before, because to observe it would wait for it.
    fn observe_draws(&self, place: usize, stream: &RandomStream) {
        let known = self.blocks.observations.draws.lock()[place];
        let is_assumed = known != Draws::Unknown && stream.devices.iter().any(is_cubecl);
        let mut found = self.numbers.found.lock();
        // The numbers before the first seed of the forward pass are unknown, so a check would tell nothing.
        let is_unknown = place == REST && found[REST] == Draws::Unknown;
        if found[place] != Draws::Numbers && !is_unknown {
            let has_drawn = match is_assumed {
                true => known == Draws::Numbers,
                false => stream.was_drawn(),
            };
            if has_drawn {
                found[place] = Draws::Numbers;
            }
        }
    }

    /// Releases the lock of the generators. Later numbers don't depend on how many this pass drew.
    pub(super) fn release_generators(&self) {
        let lock = self.numbers.generators.lock().take();
        if lock.is_none() {
            return;
        }
        if let (Some(stream), Some(_)) = (&self.numbers.stream, &self.membership) {
            seed(&stream.devices, mix(stream.seed, u64::MAX));
        }
        if let Some(seeds) = self.blocks.block_seeds.get() {
            // Later numbers don't depend on which blocks were recomputed.
            let drawn_on = std::mem::take(&mut *self.blocks.drawn_on.lock());
            let releases = self.numbers.releases.fetch_add(1, Ordering::Relaxed);
            seed(&drawn_on, mix(seeds.first, u64::MAX - releases));
        }
    }

    /// Adds what this pass has observed to what is known of the model. `since` is the number of steps without the lock when it
    /// began to observe.
    pub(super) fn record_observations(&self, since: Option<usize>) {
        let found = *self.numbers.found.lock();
        let is_disturbed = since.is_none() || since != unlocked_steps();
        let mut known = self.blocks.observations.draws.lock();
        for (known, found) in known.iter_mut().zip(found) {
            // Another training may have drawn the numbers.
            if found != Draws::Numbers || !is_disturbed {
                *known = found.max(*known);
            }
        }
    }
}
