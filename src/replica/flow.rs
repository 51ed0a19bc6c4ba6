use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::lock;

/// So long a rank waits before it looks what the others do.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// So long it waits for one of which it does not know what it does.
const UNKNOWN_PHASE_TIMEOUT: Duration = Duration::from_secs(300);

/// A rank waits for one that waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Deadlock;

/// How far one rank may run ahead of another in a backward pass.
///
/// A gradient that has arrived waits at the owner for those of the other ranks. So a rank that has sent more bytes of
/// gradients than the slowest, and than the limit beyond, waits for it, however long that takes. The slowest never waits:
/// ranks that compute their gradients in opposed orders come through, and so does a gradient larger than the limit.
///
/// A rank waits in Burn's backward pass, which locks its autodiff graph, and that may be the graph of the slowest, too,
/// where both compute with one tracked tensor. So all wait for the last forward pass before the first backward pass
/// begins, and one that has asked for its backward pass and gets no step of it done is stuck, as is one that is stuck in
/// a block. Only of a closure that runs the backward pass itself nobody knows how far it is before its first gradient.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Bytes that one may have sent more than another.
    limit: usize,
    /// Of all gradients of a pass.
    bytes: usize,
    look_after: Duration,
    unknown_phase_timeout: Duration,
    ranks: Mutex<Ranks>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Ranks {
    phases: Vec<RankPhase>,
    /// The first that has failed.
    failed: Option<usize>,
    /// Whether a rank has waited in vain: nobody waits any more in this pass.
    is_free: bool,
}

/// How far a rank is in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankPhase {
    /// In its closure.
    Forward,
    /// It has asked for its backward pass.
    Ready(Instant),
    /// In its backward pass, it has sent so many bytes.
    Backward(usize),
    /// It sends no more.
    Done,
}

impl Ranks {
    /// The fewest bytes that one has sent of which some are to come.
    fn least(&self) -> Option<usize> {
        let sent = self.phases.iter().filter_map(|phases| match phases {
            RankPhase::Forward | RankPhase::Ready(_) => Some(0),
            RankPhase::Backward(sent) => Some(*sent),
            RankPhase::Done => None,
        });
        sent.min()
    }

    fn any(&self, are: impl Fn(&RankPhase) -> bool) -> bool {
        self.phases.iter().any(are)
    }
}

impl Flow {
    /// Of ranks that send gradients of so many `bytes` in a pass, at most.
    pub(super) fn new(ranks: usize, limit: usize, bytes: usize) -> Self {
        Self {
            limit,
            bytes,
            look_after: CHECK_INTERVAL,
            unknown_phase_timeout: UNKNOWN_PHASE_TIMEOUT,
            ranks: Mutex::new(Ranks {
                phases: vec![RankPhase::Done; ranks],
                ..Ranks::default()
            }),
            changed: Condvar::new(),
        }
    }

    /// A pass begins, in which the ranks for which `takes_part` says so send gradients.
    pub(super) fn begin(&self, takes_part: &[bool]) {
        let of = |takes_part: &bool| match takes_part {
            true => RankPhase::Forward,
            false => RankPhase::Done,
        };
        *self.ranks.lock() = Ranks {
            phases: takes_part.iter().map(of).collect(),
            ..Ranks::default()
        };
    }

    /// The rank is about to begin its backward pass; waits until all others are.
    pub(crate) fn ready(&self, rank: usize) {
        lock::check_none_held("other ranks are waited for");
        let mut ranks = self.ranks.lock();
        ranks.phases[rank] = RankPhase::Ready(Instant::now());
        self.changed.notify_all();
        // One that can't be too far ahead has nothing to wait for, later either.
        while self.limit < self.bytes
            && ranks.failed.is_none()
            && ranks.any(|phases| *phases == RankPhase::Forward)
        {
            self.changed.wait(&mut ranks);
        }
        ranks.phases[rank] = RankPhase::Ready(Instant::now());
    }

    /// The backward pass of the rank has begun.
    pub(crate) fn begun(&self, rank: usize) {
        self.ranks.lock().phases[rank] = RankPhase::Backward(0);
    }

    /// The rank has sent a gradient of so many `bytes`; waits while it is too far ahead. An error if `is_deadlocked` says that
    /// waiting is in vain.
    pub(crate) fn sent(
        &self,
        rank: usize,
        bytes: usize,
        is_deadlocked: impl Fn() -> bool,
    ) -> Result<(), Deadlock> {
        lock::check_none_held("other ranks are waited for");
        #[cfg(test)]
        crate::schedule::point();
        let mut ranks = self.ranks.lock();
        let sent = match ranks.phases[rank] {
            RankPhase::Forward | RankPhase::Ready(_) => bytes,
            RankPhase::Backward(before) => before + bytes,
            RankPhase::Done => return Ok(()),
        };
        ranks.phases[rank] = RankPhase::Backward(sent);
        self.changed.notify_all();
        let ahead = |ranks: &Ranks| {
            let least = ranks.least();
            least.is_some_and(|least| sent - least > self.limit)
        };
        let begun = Instant::now();
        while ranks.failed.is_none() && !ranks.is_free && ahead(&ranks) {
            let looked_at = Instant::now() + self.look_after;
            if !self.changed.wait_until(&mut ranks, looked_at).timed_out() {
                continue;
            }
            let locked_out = |phases: &RankPhase| match phases {
                RankPhase::Ready(since) => since.elapsed() > 2 * self.look_after,
                _ => false,
            };
            if ranks.any(locked_out) || MutexGuard::unlocked(&mut ranks, &is_deadlocked) {
                return Err(Deadlock);
            }
            let in_closure = ranks.any(|phases| *phases == RankPhase::Forward);
            if in_closure && begun.elapsed() > self.unknown_phase_timeout {
                ranks.is_free = true;
                self.changed.notify_all();
                log::warn!(
                    "rank {rank} has waited {:?} for another, whose closure runs the backward pass itself and has shown no \
                     gradient yet. It goes on without waiting, so more gradients are held than usual. If both closures use \
                     the same tracked tensor (a captured one), detach it",
                    self.unknown_phase_timeout
                );
            }
        }
        Ok(())
    }

    /// The rank has failed: nobody waits for it.
    pub(crate) fn fail(&self, rank: usize) {
        self.ranks.lock().failed.get_or_insert(rank);
        self.changed.notify_all();
    }

    pub(crate) fn failed(&self) -> Option<usize> {
        self.ranks.lock().failed
    }

    pub(crate) fn take_part(&self, rank: usize) -> RankGuard<'_> {
        RankGuard {
            flow: self,
            rank,
            well: false,
        }
    }
}

/// The part of a rank in a pass. Dropped before it has ended [well](Self::well), it has failed, and nobody waits for
/// it.
#[must_use]
pub(crate) struct RankGuard<'a> {
    flow: &'a Flow,
    rank: usize,
    well: bool,
}

impl RankGuard<'_> {
    pub(crate) fn well(mut self) {
        self.well = true;
    }
}

impl Drop for RankGuard<'_> {
    fn drop(&mut self) {
        let mut ranks = self.flow.ranks.lock();
        ranks.phases[self.rank] = RankPhase::Done;
        if !self.well {
            ranks.failed.get_or_insert(self.rank);
        }
        self.flow.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
