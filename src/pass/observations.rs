use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

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

    /// Returns `true` if this forward pass can't show anything new about the draws.
    pub(super) fn knows_draws(&self) -> bool {
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

    /// Records that a pass has succeeded.
    pub(crate) fn end_pass(&self) {
        let mut draws = self.draws.lock();
        if *draws != Draws::Always {
            *draws = match (self.seeded.load(Ordering::Relaxed), *draws) {
                (false, Draws::Unknown) => Draws::OutsideOfBlocks,
                (false, known) => known,
                (true, _) => Draws::Never,
            };
        }
    }
}
