use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of weights and gradients that each rank holds in addition to its stored weights.
#[derive(Debug)]
pub(crate) struct MemoryTracker(Vec<Arc<Mutex<Account>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    now: usize,
    peak: usize,
}

impl MemoryTracker {
    pub(super) fn new(ranks: usize) -> Self {
        Self((0..ranks).map(|_| Arc::default()).collect())
    }

    /// Counts bytes as held by `rank` until the guard is dropped.
    pub(crate) fn track(&self, rank: usize, bytes: usize) -> HeldBytes {
        let account = self.0[rank].clone();
        let mut sums = account.lock();
        sums.now += bytes;
        sums.peak = sums.peak.max(sums.now);
        drop(sums);
        HeldBytes { account, bytes }
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
    account: Arc<Mutex<Account>>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.account.lock().now -= self.bytes;
    }
}
