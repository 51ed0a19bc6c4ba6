//! How much may be under way between where parameters rest and where they are computed with.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of gradients, and of weights, that one device may have under way. What is larger by itself goes alone.
#[derive(Debug)]
pub(crate) struct InFlightLimit {
    max: Option<usize>,
    /// Of the largest parameter that is ever under way.
    largest: AtomicUsize,
}

impl InFlightLimit {
    pub(crate) fn new(max: Option<usize>) -> Self {
        Self {
            max,
            largest: AtomicUsize::new(0),
        }
    }

    /// A parameter of so many bytes may be under way.
    pub(crate) fn add_parameter(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Of gradients: if nothing was asked for, so many that one is used while the next is computed.
    pub(crate) fn gradients(&self) -> usize {
        let largest = self.largest.load(Ordering::Relaxed);
        self.max.unwrap_or(largest + largest / 4)
    }

    /// Of what is saved for the backward pass, so many bytes at once: if nothing was asked for, what was saved before is gone by then.
    pub(crate) fn activations(&self, bytes: usize) -> usize {
        self.max.unwrap_or(bytes + bytes / 4)
    }

    /// Of what is brought before it is read: if nothing was asked for, all that the next block reads.
    pub(crate) fn prefetch(&self) -> usize {
        self.max.unwrap_or(usize::MAX)
    }
}
