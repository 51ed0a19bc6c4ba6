//! The random numbers of a pass, and the lock of the generators.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use parking_lot::Mutex;

use super::{Pass, Scope};
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::random::{GENERATORS, RandomStream, RngLock, Run, system_seed};

/// Where a model draws random numbers, as far as observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Draws {
    /// Unknown: no pass has ended.
    #[default]
    Unknown,
    /// Blocks draw nothing. The rest of the forward pass continues the program's numbers, where draws can't be
    /// observed.
    OutsideOfBlocks,
    Never,
    Always,
}

/// Facts about a model that were observed in earlier passes.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    reported: Mutex<HashSet<String>>,
    pub(super) draws: Mutex<Draws>,
    /// The numbers of this forward pass began with a seed, so draws are observed.
    pub(super) seeded: AtomicBool,
    /// Another pass held the generators when a run began, so its draws are unknown.
    unlocked: AtomicBool,
}

impl Observations {
    /// Returns `true` if this message is new.
    pub(super) fn is_new(&self, reported: String) -> bool {
        self.reported.lock().insert(reported)
    }

    /// Returns where the model draws random numbers, as far as observed.
    pub(super) fn draws(&self) -> Draws {
        *self.draws.lock()
    }

    /// Returns `true` if the model draws random numbers, or no pass has ended yet.
    pub(crate) fn may_draw(&self) -> bool {
        matches!(self.draws(), Draws::Unknown | Draws::Always)
    }

    /// Returns `true` if this forward pass can't add to what is known of the draws.
    pub(super) fn draws_are_known(&self) -> bool {
        match self.draws() {
            Draws::Unknown => false,
            Draws::OutsideOfBlocks => !self.seeded.load(Ordering::Relaxed),
            Draws::Never | Draws::Always => true,
        }
    }

    /// Records that a run has begun without the lock of the generators.
    pub(super) fn start_unlocked(&self) {
        self.unlocked.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a run has begun without the lock since the last call.
    pub(crate) fn take_unlocked(&self) -> bool {
        self.unlocked.swap(false, Ordering::Relaxed)
    }

    /// Records that a run has drawn random numbers.
    pub(crate) fn has_drawn(&self) {
        *self.draws.lock() = Draws::Always;
    }
}

/// The lock of the generators that a forward pass holds.
#[derive(Debug)]
pub(super) struct ForwardLock {
    _lock: RngLock,
    /// The numbers since the last seed; `None` if the seed is unknown.
    numbers: Option<RandomStream>,
}

impl Pass {
    /// Takes the lock of the generators to draw on `devices`. Returns `None` if another pass holds it and this model draws
    /// nothing.
    ///
    /// # Errors
    ///
    /// If another pass holds the lock for too long.
    pub(crate) fn lock_generators(
        &self,
        devices: &[Device],
    ) -> Result<Option<RngLock>, FusedError> {
        let observations = &self.blocks.observations;
        let lock = GENERATORS.take(self, devices, observations.may_draw())?;
        if lock.is_none() {
            observations.start_unlocked();
        }
        Ok(lock)
    }

    /// Takes the lock for the forward pass on `devices`, if the pass has its own `numbers` or may draw. The forward pass
    /// begins with `numbers`. The lock is released after the `asynchronous` devices have launched what was drawn.
    ///
    /// If another pass holds the lock, the program's numbers are out of order anyway. So this pass is seeded, to
    /// observe whether it draws. A model that draws nothing waits only once.
    pub(crate) fn begin_forward(
        &self,
        numbers: Option<RandomStream>,
        devices: &[Device],
        asynchronous: &[Device],
    ) -> Result<(), FusedError> {
        let observations = &self.blocks.observations;
        observations
            .seeded
            .store(numbers.is_some(), Ordering::Relaxed);
        let draws = *observations.draws.lock();
        let (lock, numbers) = match (numbers, draws) {
            (None, Draws::Never) => return Ok(()),
            (None, Draws::OutsideOfBlocks) => match GENERATORS.take(self, asynchronous, false)? {
                Some(lock) => (Some(lock), None),
                None => {
                    let lock = GENERATORS.take(self, asynchronous, true)?;
                    observations.seeded.store(true, Ordering::Relaxed);
                    let seed = |device: &Device| self.blocks.seeds.next(device);
                    (lock, Some(RandomStream::new(devices.to_vec(), seed)))
                }
            },
            (numbers, _) => (self.lock_generators(asynchronous)?, numbers),
        };
        if let Some(lock) = lock {
            numbers.iter().for_each(RandomStream::start);
            *self.forward.lock() = Some(ForwardLock {
                _lock: lock,
                numbers,
            });
        }
        Ok(())
    }

    /// Releases the lock of the forward pass, before other ranks are waited for.
    pub(crate) fn end_forward(&self) {
        let mut forward = self.forward.lock();
        if let Some(numbers) = forward.as_mut().and_then(|it| it.numbers.take()) {
            self.end_numbers(numbers);
        }
        *forward = None;
    }

    /// Releases the lock of a forward pass that may have failed.
    pub(crate) fn release_generators(&self) {
        *self.forward.lock() = None;
    }

    /// Returns `true` if the forward pass holds the lock.
    pub(crate) fn holds_generators(&self) -> bool {
        self.forward.lock().is_some()
    }

    /// Ends the numbers that the forward pass draws outside of blocks. Later numbers do not depend on these numbers, or
    /// on the check for draws.
    fn end_numbers(&self, mut numbers: RandomStream) {
        if self.blocks.observations.draws() != Draws::Always {
            self.has_drawn(&numbers);
        }
        numbers.advance(Run::OutsideOfBlocks);
    }

    /// Continues the forward pass with `numbers`.
    fn continue_with(&self, numbers: RandomStream) {
        if let Some(forward) = &mut *self.forward.lock() {
            forward.numbers = Some(numbers);
        }
    }

    /// Returns `true` if numbers were drawn from `numbers` since its start, and replaces the numbers that follow. The
    /// check would wait for a CubeCL device, so after the first pass such a device is assumed to draw as before.
    fn has_drawn(&self, numbers: &RandomStream) -> bool {
        let observations = &self.blocks.observations;
        if observations.draws_are_known() && numbers.devices.iter().any(is_cubecl) {
            return observations.may_draw();
        }
        let drawn = numbers.was_drawn();
        if drawn {
            observations.has_drawn();
        }
        drawn
    }
}

/// The random numbers that the first run of a block drew.
pub(crate) enum Drawn {
    Nothing,
    Numbers(RandomStream),
    /// Another pass held the generators.
    Unknown,
}

/// The first run of a block, with its own random numbers.
pub(crate) struct RandomRun {
    pass: Arc<Pass>,
    pub(crate) numbers: RandomStream,
    /// `None` if the run must not change the generators.
    lock: Option<BlockLock>,
}

/// The locks of a run of a block: between passes, and between threads of the pass.
pub(crate) struct BlockLock {
    _among_threads: Option<RngLock>,
    _lock: RngLock,
}

impl Scope {
    /// Begins the first run of a block that draws on `devices`.
    ///
    /// # Errors
    ///
    /// If another pass holds the lock of the generators for too long.
    pub(crate) fn begin_random(&self, devices: Vec<Device>) -> Result<RandomRun, FusedError> {
        let pass = self.pass.clone();
        let lock = pass.lock_generators(&devices)?;
        if let Some(forward) = &mut *pass.forward.lock()
            && let Some(numbers) = forward.numbers.take()
        {
            pass.end_numbers(numbers);
        }
        let numbers = RandomStream::new(devices, |device| match &lock {
            Some(_) => self.next_seed(device),
            None => system_seed(),
        });
        let lock = lock.map(|lock| self.among_threads(lock)).transpose()?;
        if lock.is_some() {
            pass.blocks.draw_on(&numbers.devices);
            numbers.start();
        }
        Ok(RandomRun {
            pass,
            numbers,
            lock,
        })
    }

    /// Locks the generators for a run that draws `numbers` again.
    ///
    /// # Errors
    ///
    /// If another pass holds the lock for too long.
    pub(crate) fn repeat_random(&self, numbers: &RandomStream) -> Result<BlockLock, FusedError> {
        let lock = GENERATORS.take(&*self.pass, &numbers.devices, true)?;
        self.among_threads(lock.expect("it is waited for"))
    }

    /// Waits for blocks on other threads of the closure. A nested block shares the lock of the outer one.
    fn among_threads(&self, lock: RngLock) -> Result<BlockLock, FusedError> {
        let among_threads = match self.is_in_block() {
            true => None,
            false => RngLock::among_threads()?,
        };
        Ok(BlockLock {
            _among_threads: among_threads,
            _lock: lock,
        })
    }
}

impl RandomRun {
    /// Ends the run.
    pub(crate) fn end(self) -> Drawn {
        if self.lock.is_none() {
            return Drawn::Unknown;
        }
        let drawn = self.pass.has_drawn(&self.numbers);
        let mut next = self.numbers.clone();
        next.advance(Run::Block);
        self.pass.continue_with(next);
        match drawn {
            true => Drawn::Numbers(self.numbers),
            false => Drawn::Nothing,
        }
    }
}
