use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// So long a rank waits before it looks what the others do, and before it goes on all the same.
const LOOK_AFTER: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank waits for one that waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

/// How far one rank may run ahead of another in a backward pass.
///
/// A gradient that has arrived waits at the owner for those of the other ranks. So a rank that has sent more
/// gradients than the slowest, and than `max_lead` beyond, waits for it. The slowest never waits: ranks that
/// compute their gradients in opposed orders come through, too. Neither does anybody wait for ever: a rank waits in
/// Burn's backward pass, which locks its autodiff graph, and that may be the graph of the slowest, too, where both
/// compute with one tracked tensor.
#[derive(Debug)]
pub(super) struct Flow {
    max_lead: usize,
    ranks: Mutex<Ranks>,
    changed: Condvar,
}

#[derive(Debug)]
struct Ranks {
    sent: Vec<Sent>,
    /// The first that has failed.
    failed: Option<usize>,
    /// Whether a rank has waited in vain: nobody waits any more in this pass.
    is_free: bool,
}

/// The gradients that a rank has sent in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    SoFar(usize),
    All,
}

impl Flow {
    pub(super) fn new(ranks: usize, max_lead: usize) -> Self {
        Self {
            max_lead,
            ranks: Mutex::new(Ranks {
                sent: vec![Sent::All; ranks],
                failed: None,
                is_free: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// A pass begins, in which the ranks for which `takes_part` says so send gradients.
    pub(super) fn begin(&self, takes_part: &[bool]) {
        let of = |takes_part: &bool| match takes_part {
            true => Sent::SoFar(0),
            false => Sent::All,
        };
        *self.ranks.lock() = Ranks {
            sent: takes_part.iter().map(of).collect(),
            failed: None,
            is_free: false,
        };
    }

    /// The rank has sent one gradient more; waits while it is too far ahead. An error if `is_stuck` says that waiting is
    /// in vain.
    pub(super) fn sent(&self, rank: usize, is_stuck: impl Fn() -> bool) -> Result<(), Stuck> {
        let mut ranks = self.ranks.lock();
        let Sent::SoFar(before) = ranks.sent[rank] else {
            return Ok(());
        };
        ranks.sent[rank] = Sent::SoFar(before + 1);
        self.changed.notify_all();
        let ahead = |ranks: &Ranks| match ranks.sent.iter().min() {
            Some(Sent::SoFar(least)) => before + 1 - least > self.max_lead,
            _ => false,
        };
        let begun = Instant::now();
        while ranks.failed.is_none() && !ranks.is_free && ahead(&ranks) {
            if !self.changed.wait_for(&mut ranks, LOOK_AFTER).timed_out() {
                continue;
            }
            if MutexGuard::unlocked(&mut ranks, &is_stuck) {
                return Err(Stuck);
            }
            if begun.elapsed() > PATIENCE {
                ranks.is_free = true;
                self.changed.notify_all();
                log::warn!(
                    "rank {rank} has waited {PATIENCE:?} for a slower one, and goes on, so that more gradients wait at \
                     their owners: if both compute with one tracked tensor, a captured one, detach it"
                );
            }
        }
        Ok(())
    }

    /// The rank has failed: nobody waits for it.
    pub(super) fn fail(&self, rank: usize) {
        self.ranks.lock().failed.get_or_insert(rank);
        self.changed.notify_all();
    }

    pub(super) fn failed(&self) -> Option<usize> {
        self.ranks.lock().failed
    }

    fn leave(&self, rank: usize, well: bool) {
        let mut ranks = self.ranks.lock();
        ranks.sent[rank] = Sent::All;
        if !well {
            ranks.failed.get_or_insert(rank);
        }
        self.changed.notify_all();
    }

    pub(super) fn take_part(&self, rank: usize) -> Part<'_> {
        Part {
            flow: self,
            rank,
            well: false,
        }
    }
}

/// The part of a rank in a pass. Dropped before it has ended [well](Self::well), it has failed, and nobody waits for
/// it.
#[must_use]
pub(crate) struct Part<'a> {
    flow: &'a Flow,
    rank: usize,
    well: bool,
}

impl Part<'_> {
    pub(crate) fn well(mut self) {
        self.well = true;
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.flow.leave(self.rank, self.well);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_rank_is_further_ahead_than_the_limit() {
        let flow = Flow::new(3, 2);
        flow.begin(&[true, true, true]);
        let sent = [const { AtomicUsize::new(0) }; 3];
        thread::scope(|scope| {
            for rank in 0..3 {
                let (flow, sent) = (&flow, &sent);
                scope.spawn(move || {
                    let part = flow.take_part(rank);
                    for _ in 0..20 {
                        thread::sleep(Duration::from_micros(100 * rank as u64));
                        assert_eq!(flow.sent(rank, || false), Ok(()));
                        let mine = sent[rank].fetch_add(1, Ordering::SeqCst) + 1;
                        // What has been sent is counted before.
                        let least = sent
                            .iter()
                            .map(|sent| sent.load(Ordering::SeqCst) + 1)
                            .min();
                        assert!(mine <= least.unwrap() + 2, "{mine} of {sent:?}");
                    }
                    part.well();
                });
            }
        });
        assert_eq!(flow.failed(), None);
    }

    #[test]
    fn nobody_waits_for_a_rank_that_has_failed() {
        let flow = Flow::new(2, 0);
        flow.begin(&[true, true]);
        thread::scope(|scope| {
            scope.spawn(|| flow.sent(0, || false));
            thread::sleep(Duration::from_millis(5));
            drop(flow.take_part(1));
        });
        assert_eq!(flow.failed(), Some(1));
    }
}
