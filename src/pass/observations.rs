use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What is known of the random numbers of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Draws {
    /// No pass has ended.
    #[default]
    Unknown,
    /// Its blocks draw nothing. The rest of the forward pass continues the numbers of the program, where draws can't be seen.
    OutsideOfBlocks,
    Never,
    Always,
}

/// What the passes so far have taught of a model.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    reported: Mutex<HashSet<String>>,
    pub(super) draws: Mutex<Draws>,
    /// The numbers of this forward pass began with a seed, so what it draws is seen.
    pub(super) seeded: AtomicBool,
    /// Another pass held the generators when a run began, so whether it drew is unknown.
    unlocked: AtomicBool,
}

impl Observations {
    /// Whether this is told for the first time.
    pub(super) fn is_new(&self, reported: String) -> bool {
        self.reported.lock().insert(reported)
    }

    /// Returns what is known of the random numbers of the model.
    pub(super) fn draws(&self) -> Draws {
        *self.draws.lock()
    }

    /// Returns `true` if the model draws random numbers, or no pass has ended yet.
    pub(crate) fn may_draw(&self) -> bool {
        matches!(self.draws(), Draws::Unknown | Draws::Always)
    }

    /// Returns `true` if this forward pass can't show more than is known of the random numbers.
    pub(super) fn knows_draws(&self) -> bool {
        match self.draws() {
            Draws::Unknown => false,
            Draws::OutsideOfBlocks => !self.seeded.load(Ordering::Relaxed),
            Draws::Never | Draws::Always => true,
        }
    }

    /// A run has begun without the lock of the generators.
    pub(super) fn start_unlocked(&self) {
        self.unlocked.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a run has begun without the lock since the last call.
    pub(crate) fn take_unlocked(&self) -> bool {
        self.unlocked.swap(false, Ordering::Relaxed)
    }

    /// A run has drawn random numbers.
    pub(crate) fn has_drawn(&self) {
        *self.draws.lock() = Draws::Always;
    }

    /// A pass of the model has ended well.
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
