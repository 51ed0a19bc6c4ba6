use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of weights and gradients that each rank holds in addition to its stored weights.
#[derive(Clone, Debug)]
pub(crate) struct MemoryTracker(Arc<Vec<Mutex<Account>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    now: usize,
    peak: usize,
}

impl MemoryTracker {
    pub(super) fn new(ranks: usize) -> Self {
        Self(Arc::new((0..ranks).map(|_| Mutex::default()).collect()))
    }

    /// Counts bytes as held by `rank` until the guard is dropped.
    pub(crate) fn track(&self, rank: usize, bytes: usize) -> HeldBytes {
        let mut account = self.0[rank].lock();
        account.now += bytes;
        account.peak = account.peak.max(account.now);
        HeldBytes {
            memory_tracker: self.clone(),
            rank,
            bytes,
        }
    }

    /// Resets the peaks.
    pub(super) fn begin(&self) {
        for account in self.0.iter() {
            let mut account = account.lock();
            account.peak = account.now;
        }
    }

    /// Returns the peak bytes of `rank` in the last pass.
    pub(crate) fn peak(&self, rank: usize) -> usize {
        self.0[rank].lock().peak
    }
}

/// A guard of bytes that a rank holds.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldBytes {
    memory_tracker: MemoryTracker,
    rank: usize,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory_tracker.0[self.rank].lock().now -= self.bytes;
    }
}
