use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What the passes so far have taught of a model.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    told: Mutex<HashSet<String>>,
    /// Whether the model draws random numbers, once a pass has shown it.
    draws: Mutex<Option<bool>>,
    /// Another pass held the generators when a run began, so whether it drew is unknown.
    unlocked: AtomicBool,
}

impl Learned {
    /// Whether this is told for the first time.
    pub(super) fn is_new(&self, told: String) -> bool {
        self.told.lock().insert(told)
    }

    /// Returns `true` if the model draws random numbers, or no pass has ended yet.
    pub(crate) fn may_draw(&self) -> bool {
        self.draws.lock().unwrap_or(true)
    }

    /// Returns `true` if the model has drawn random numbers.
    pub(super) fn has_been_drawn(&self) -> bool {
        *self.draws.lock() == Some(true)
    }

    /// Returns `true` if it is known whether the model draws random numbers.
    pub(super) fn knows_draws(&self) -> bool {
        self.draws.lock().is_some()
    }

    /// A run has begun without the lock of the generators.
    pub(super) fn runs_unlocked(&self) {
        self.unlocked.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a run has begun without the lock since the last call.
    pub(crate) fn ran_unlocked(&self) -> bool {
        self.unlocked.swap(false, Ordering::Relaxed)
    }

    /// A run has drawn random numbers.
    pub(crate) fn has_drawn(&self) {
        *self.draws.lock() = Some(true);
    }

    /// A pass of the model has ended well.
    pub(crate) fn end_pass(&self) {
        self.draws.lock().get_or_insert(false);
    }
}
