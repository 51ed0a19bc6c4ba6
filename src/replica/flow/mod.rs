//! Flow control between ranks.
//!
//! # Invariants
//!
//! - A gradient waits at the owner for those of the other ranks. A rank waits, without a timeout, if it has sent more
//!   bytes than the slowest rank plus the limit. The slowest rank never waits. So ranks with opposite orders make
//!   progress, and a gradient may be larger than the limit.
//! - A rank waits inside Burn's backward pass, which locks its autodiff graph. Ranks that compute with one tracked tensor
//!   share the graph. So no backward pass begins before the last forward pass ends, unless all gradients fit into the
//!   limit.
//! - A rank that has requested its backward pass and makes no progress is deadlocked, and so is one that is deadlocked
//!   in a block. If the closure runs the backward pass itself, progress is unknown until its first gradient arrives.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::threads::lock;

/// Interval at which a waiting rank checks the phases of the others.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for a rank whose phase is unknown.
const UNKNOWN_PHASE_TIMEOUT: Duration = Duration::from_secs(300);

/// A deadlock: a rank waits for one that waits for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Deadlock;

/// A limit on how far one rank may be ahead of another in a backward pass.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Maximum difference of the bytes sent by two ranks.
    limit: usize,
    /// Bytes of all gradients of a pass.
    bytes: usize,
    check_interval: Duration,
    unknown_phase_timeout: Duration,
    ranks: Mutex<Ranks>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Ranks {
    phases: Vec<RankPhase>,
    /// The first rank that has failed.
    failed: Option<usize>,
    /// `true` after a rank has timed out: no rank waits any more in this pass.
    is_unlimited: bool,
}

/// The phase of a rank in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankPhase {
    /// In its closure.
    Forward,
    /// Waits for the forward passes of the others, or for its graph.
    BackwardRequested(Instant),
    /// In its backward pass, with the bytes sent.
    Backward(usize),
    /// All gradients are sent.
    Done,
}

impl Ranks {
    /// Returns the fewest bytes sent by a rank that is not done.
    fn least(&self) -> Option<usize> {
        let sent = self.phases.iter().filter_map(|phase| match phase {
            RankPhase::Forward | RankPhase::BackwardRequested(_) => Some(0),
            RankPhase::Backward(sent) => Some(*sent),
            RankPhase::Done => None,
        });
        sent.min()
    }

    fn any(&self, is: impl Fn(&RankPhase) -> bool) -> bool {
        self.phases.iter().any(is)
    }
}

impl Flow {
    /// Creates the flow control of ranks that send at most `bytes` of gradients in a pass.
    pub(super) fn new(ranks: usize, limit: usize, bytes: usize) -> Self {
        Self {
            limit,
            bytes,
            check_interval: CHECK_INTERVAL,
            unknown_phase_timeout: UNKNOWN_PHASE_TIMEOUT,
            ranks: Mutex::new(Ranks {
                phases: vec![RankPhase::Done; ranks],
                ..Ranks::default()
            }),
            changed: Condvar::new(),
        }
    }

    /// Begins a pass; only ranks with a batch send gradients.
    pub(super) fn begin(&self, has_batch: &[bool]) {
        let of = |has_batch: &bool| match has_batch {
            true => RankPhase::Forward,
            false => RankPhase::Done,
        };
        *self.ranks.lock() = Ranks {
            phases: has_batch.iter().map(of).collect(),
            ..Ranks::default()
        };
    }

    /// Records that the rank requests its backward pass; waits until no rank is in its forward pass.
    pub(crate) fn request_backward(&self, rank: usize) {
        lock::check_none_held("other ranks are waited for");
        let mut ranks = self.ranks.lock();
        ranks.phases[rank] = RankPhase::BackwardRequested(Instant::now());
        self.changed.notify_all();
        // A rank that can't exceed the limit never waits.
        while self.limit < self.bytes
            && ranks.failed.is_none()
            && ranks.any(|phase| *phase == RankPhase::Forward)
        {
            self.changed.wait(&mut ranks);
        }
        ranks.phases[rank] = RankPhase::BackwardRequested(Instant::now());
    }

    /// Records that the backward pass of the rank has begun.
    pub(crate) fn begin_backward(&self, rank: usize) {
        self.ranks.lock().phases[rank] = RankPhase::Backward(0);
    }

    /// Records that the rank has sent a gradient of `bytes`; waits while it is too far ahead. Returns an error if
    /// `is_deadlocked` returns `true`, or a rank has requested its backward pass more than two check intervals ago.
    pub(crate) fn report_sent(
        &self,
        rank: usize,
        bytes: usize,
        is_deadlocked: impl Fn() -> bool,
    ) -> Result<(), Deadlock> {
        lock::check_none_held("other ranks are waited for");
        #[cfg(test)]
        crate::threads::schedule::point();
        let mut ranks = self.ranks.lock();
        let sent = match ranks.phases[rank] {
            RankPhase::Forward | RankPhase::BackwardRequested(_) => bytes,
            RankPhase::Backward(before) => before + bytes,
            RankPhase::Done => return Ok(()),
        };
        ranks.phases[rank] = RankPhase::Backward(sent);
        self.changed.notify_all();
        let ahead = |ranks: &Ranks| {
            let least = ranks.least();
            least.is_some_and(|least| sent - least > self.limit)
        };
        let start = Instant::now();
        while ranks.failed.is_none() && !ranks.is_unlimited && ahead(&ranks) {
            let next_check = Instant::now() + self.check_interval;
            if !self.changed.wait_until(&mut ranks, next_check).timed_out() {
                continue;
            }
            let locked_out = |phase: &RankPhase| match phase {
                RankPhase::BackwardRequested(since) => since.elapsed() > 2 * self.check_interval,
                _ => false,
            };
            if ranks.any(locked_out) || MutexGuard::unlocked(&mut ranks, &is_deadlocked) {
                return Err(Deadlock);
            }
            let in_closure = ranks.any(|phase| *phase == RankPhase::Forward);
            if in_closure && start.elapsed() > self.unknown_phase_timeout {
                ranks.is_unlimited = true;
                self.changed.notify_all();
                log::warn!(
                    "rank {rank} has waited {:?} for another rank, whose closure runs the backward pass itself and has no \
                     gradient yet. It continues without waiting, so more gradients are in memory than usual. If both \
                     closures capture the same tracked tensor, detach it",
                    self.unknown_phase_timeout
                );
            }
        }
        Ok(())
    }

    /// Records that the rank has failed: no rank waits for it.
    pub(crate) fn fail(&self, rank: usize) {
        self.ranks.lock().failed.get_or_insert(rank);
        self.changed.notify_all();
    }

    pub(crate) fn failed(&self) -> Option<usize> {
        self.ranks.lock().failed
    }

    /// Begins the part of a rank in a pass.
    pub(crate) fn enter(&self, rank: usize) -> RankGuard<'_> {
        RankGuard {
            flow: self,
            rank,
            has_succeeded: false,
        }
    }
}

/// A guard of the part of a rank in a pass. If it is dropped before [`succeed`](Self::succeed), the rank has failed, and no
/// rank waits for it.
#[must_use]
pub(crate) struct RankGuard<'a> {
    flow: &'a Flow,
    rank: usize,
    has_succeeded: bool,
}

impl RankGuard<'_> {
    pub(crate) fn succeed(mut self) {
        self.has_succeeded = true;
    }
}

impl Drop for RankGuard<'_> {
    fn drop(&mut self) {
        let mut ranks = self.flow.ranks.lock();
        ranks.phases[self.rank] = RankPhase::Done;
        if !self.has_succeeded {
            ranks.failed.get_or_insert(self.rank);
        }
        self.flow.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
