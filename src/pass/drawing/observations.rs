//! Observations of the random numbers that a model draws.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

/// Observed draws of random numbers by some code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Draws {
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
    pub(super) draws: Mutex<[Draws; 2]>,
    /// The lock that lets one rank, or one block, draw at a time.
    pub(super) turns: Arc<Mutex<()>>,
    /// `true` after a step has waited for the lock without end. The model waits again only if it is known to draw.
    pub(super) has_timed_out: AtomicBool,
}

/// Index of the draws of blocks.
pub(super) const BLOCKS: usize = 0;
/// Index of the draws of the closure outside of blocks. They are observed only if the forward pass begins with a seed.
pub(super) const REST: usize = 1;

impl Observations {
    /// Returns `true` if this message is new.
    pub(crate) fn is_new(&self, reported: String) -> bool {
        self.reported.lock().insert(reported)
    }

    /// Returns `true` unless the model is known to draw nothing.
    pub(crate) fn may_draw(&self) -> bool {
        *self.draws.lock() != [Draws::Nothing; 2]
    }

    /// Returns `true` if the model is known to draw.
    pub(super) fn draws(&self) -> bool {
        self.draws.lock().contains(&Draws::Numbers)
    }

    /// Records that a run has drawn random numbers that it must repeat.
    pub(crate) fn record_draws(&self) {
        self.draws.lock()[BLOCKS] = Draws::Numbers;
    }
}
