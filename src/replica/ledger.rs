use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of weights and gradients that each rank holds beside what rests there.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Arc<Vec<Mutex<Account>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    now: usize,
    most: usize,
}

impl Ledger {
    pub(super) fn new(ranks: usize) -> Self {
        Self(Arc::new((0..ranks).map(|_| Mutex::default()).collect()))
    }

    /// Counts bytes as held by `rank` until what is returned is dropped.
    pub(crate) fn hold(&self, rank: usize, bytes: usize) -> Hold {
        let mut account = self.0[rank].lock();
        account.now += bytes;
        account.most = account.most.max(account.now);
        Hold {
            ledger: self.clone(),
            rank,
            bytes,
        }
    }

    /// Forgets what was before.
    pub(super) fn begin(&self) {
        for account in self.0.iter() {
            let mut account = account.lock();
            account.most = account.now;
        }
    }

    /// The most that `rank` has held at once in the last pass.
    pub(crate) fn most(&self, rank: usize) -> usize {
        self.0[rank].lock().most
    }
}

/// Bytes that a rank holds.
#[derive(Debug)]
#[must_use]
pub(crate) struct Hold {
    ledger: Ledger,
    rank: usize,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ledger.0[self.rank].lock().now -= self.bytes;
    }
}
