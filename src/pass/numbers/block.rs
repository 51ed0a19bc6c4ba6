//! The random numbers of a block, in its first run and in its recomputation.

use std::sync::Arc;
use std::time::Duration;

use backburn_base::is_cubecl;
use burn::tensor::Device;
use parking_lot::Mutex;

use super::{BLOCKS, Draws, REST, SinceSeed};
use crate::error::FusedError;
use crate::pass::{Pass, Scope};
use crate::random::{GENERATORS, RandomStream, RngLock, Run, system_seed};
use crate::threads::lock::is_in_pool;

/// The source of the random numbers of a block.
#[derive(Clone, Debug)]
pub(crate) enum NumberSource {
    /// The block draws from its own stream.
    Repeated(Arc<SinceSeed>),
    /// The block draws nothing in both of its runs.
    Nothing,
    /// The block draws from the generators as they are, because another run has their lock.
    Shared,
}

/// The first run of a block, with its own random numbers.
pub(crate) struct RandomRun {
    scope: Scope,
    pub(crate) stream: RandomStream,
    pub(crate) source: NumberSource,
    /// The lock of the generators, and the turn. A nested block uses the locks of the outer block.
    _locks: Option<(Arc<RngLock>, RngLock)>,
}

impl RandomRun {
    /// Begins the first run of the block with this name in `scope`, which draws on `devices`.
    ///
    /// # Errors
    ///
    /// If blocks of this model have drawn before, and another training or thread has the lock of the generators.
    pub(crate) fn begin(
        scope: &Scope,
        name: &str,
        devices: Vec<Device>,
    ) -> Result<Self, FusedError> {
        let pass = &scope.pass;
        let known = pass.blocks.observations.draws.lock()[BLOCKS];
        let outer = scope.number_source();
        let locks = match outer {
            None => lock_block(scope, &devices, known != Draws::Nothing),
            Some(_) => None,
        };
        let source = match (outer, &locks) {
            (None, None) if known == Draws::Numbers => {
                let place = format!("the block `{name}`");
                return Err(FusedError::RandomNumbersLocked { place });
            }
            (None, None) => NumberSource::Shared,
            (None, Some(_)) | (Some(NumberSource::Repeated(_)), _) => {
                NumberSource::Repeated(Arc::default())
            }
            (Some(outer), _) => outer.clone(),
        };
        let stream = RandomStream::new(devices, |device| match (&source, outer) {
            (NumberSource::Shared, None) => system_seed(),
            _ => scope.next_seed(device),
        });
        match &source {
            NumberSource::Repeated(own) => {
                let (place, outer) = outer_numbers(scope);
                let before = outer.lock().take();
                if let Some(before) = before {
                    pass.observe_draws(place, &before);
                }
                pass.blocks.draw_on(&stream.devices);
                pass.numbers.start(own, stream.clone());
            }
            NumberSource::Shared => {
                let found = &mut pass.numbers.found.lock()[BLOCKS];
                if *found == Draws::Nothing {
                    *found = Draws::Unknown;
                }
            }
            NumberSource::Nothing => {}
        }
        Ok(Self {
            scope: scope.clone(),
            stream,
            source,
            _locks: locks,
        })
    }

    /// Takes the turn for the recomputation of the block with this name, which draws from `stream` again.
    ///
    /// # Errors
    ///
    /// If another rank or thread keeps its turn and makes no progress, or this is a thread of a rayon pool, which does not wait.
    pub(crate) fn repeat(
        scope: &Scope,
        name: &str,
        stream: &RandomStream,
    ) -> Result<RngLock, FusedError> {
        let turn = RngLock::take(turns(scope), &stream.devices, true);
        turn.ok_or_else(|| FusedError::RandomNumbersLocked {
            place: format!("the block {name}"),
        })
    }

    /// Ends the run. Returns its stream, and the source of its numbers.
    pub(crate) fn end(self) -> (RandomStream, NumberSource) {
        let NumberSource::Repeated(own) = &self.source else {
            return (self.stream, self.source);
        };
        let pass = &self.scope.pass;
        let own = own.lock().take();
        if let Some(own) = own {
            pass.observe_draws(BLOCKS, &own);
        }
        let mut next = self.stream.clone();
        next.advance(Run::Block);
        let (_, outer) = outer_numbers(&self.scope);
        *outer.lock() = Some(next);
        // On CubeCL only the first pass observes whether blocks draw, and a later one may begin to. Ranks would repeat in turn.
        let on_cubecl = self.stream.devices.iter().any(is_cubecl);
        let is_unobserved = on_cubecl && pass.membership.is_none();
        let source = match pass.numbers.found.lock()[BLOCKS] {
            Draws::Numbers => self.source,
            _ if is_unobserved => self.source,
            _ => NumberSource::Nothing,
        };
        (self.stream, source)
    }
}

/// Locks the generators for a block on `devices`. If another run has them, waits for them if `waits`. Returns `None` without the lock.
fn lock_block(scope: &Scope, devices: &[Device], waits: bool) -> Option<(Arc<RngLock>, RngLock)> {
    let lock = lock_of_pass(&scope.pass, devices, waits)?;
    let turn = RngLock::take(turns(scope), devices, waits)?;
    Some((lock, turn))
}

/// Returns the lock of the pass, or takes it: a model that drew nothing may begin to draw, and a closure may run a block after its
/// backward pass. In a step of two passes, only one of the passes might get it.
fn lock_of_pass(pass: &Pass, devices: &[Device], waits: bool) -> Option<Arc<RngLock>> {
    let numbers = &pass.numbers;
    let held = numbers.generators.lock().clone();
    if held.is_some() || numbers.repeats {
        return held;
    }
    // A step that began without the lock does not wait: each of its blocks would.
    let waits = waits && numbers.began_locked && !is_in_pool();
    // One thread at a time, because another one of this pass may be taking the lock.
    let _one = match waits {
        true => numbers.taking.lock(),
        false => numbers.taking.try_lock_for(Duration::from_millis(100))?,
    };
    let held = numbers.generators.lock().clone();
    if held.is_some() {
        return held;
    }
    let taken = Arc::new(RngLock::take(&GENERATORS, devices, waits)?);
    let mut lock = numbers.generators.lock();
    (!pass.is_over()).then(|| lock.insert(taken).clone())
}

/// Returns the turns of blocks: among all ranks, or within the turn of this rank.
fn turns(scope: &Scope) -> &Arc<Mutex<()>> {
    let Pass {
        numbers, blocks, ..
    } = &*scope.pass;
    match numbers.turn.lock().is_some() {
        true => &numbers.block_turns,
        false => &blocks.observations.turns,
    }
}

/// Returns the numbers of the run outside of a block in this scope.
fn outer_numbers(scope: &Scope) -> (usize, &SinceSeed) {
    match scope.number_source() {
        Some(NumberSource::Repeated(outer)) => (BLOCKS, outer),
        _ => (REST, &scope.pass.numbers.rest),
    }
}
