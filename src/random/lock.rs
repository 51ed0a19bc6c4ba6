//! The lock of Burn's random generators, which are one per process.
//!
//! # Invariants
//!
//! A thread of a rayon pool never waits for the lock: the holder needs the threads of the pool to compute, and its own thread may
//! run another training in between. Each wait ends, at the latest when the holder makes no progress for a [`TIMEOUT`].

use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use backburn_base::{caught::catch, flush};
use burn::tensor::Device;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use crate::threads::lock::{self, is_in_pool};

/// The time without progress after which a holder may be waiting for this thread. It makes progress when it reads a parameter or
/// receives a gradient.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// The lock of Burn's generators.
pub(crate) static GENERATORS: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// Increases while the holder of a lock makes progress.
pub(crate) static PROGRESS: AtomicUsize = AtomicUsize::new(0);

/// The number of steps that have begun without the lock. Each holds a clone until it ends, and may draw between two numbers of any
/// other run.
static UNLOCKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Begins a step without the lock, which ends when the result is dropped.
pub(crate) fn begin_unlocked() -> Arc<AtomicUsize> {
    let step = UNLOCKED.clone();
    step.fetch_add(1, Ordering::SeqCst);
    step
}

/// Returns the number of steps without the lock so far, or `None` while there is one.
pub(crate) fn unlocked_steps() -> Option<usize> {
    // Read first: a step that begins now changes the number for the next call.
    let begun = UNLOCKED.load(Ordering::SeqCst);
    (Arc::strong_count(&UNLOCKED) == 1).then_some(begun)
}

/// A guard of a lock of the generators. It may be released on another thread.
#[must_use]
pub(crate) struct RngLock {
    /// `None` after the drop.
    guard: Option<ArcMutexGuard<RawMutex, ()>>,
    devices: Vec<Device>,
    /// `true` if the thread has waited for the lock.
    pub(crate) waited: bool,
}

impl RngLock {
    /// Takes a lock to draw on `devices`. If another run holds it, waits for it if `waits`, but never on a thread of a rayon
    /// pool. Returns `None` without the lock.
    pub(crate) fn take(lock: &Arc<Mutex<()>>, devices: &[Device], waits: bool) -> Option<Self> {
        let (guard, waited) = match lock.try_lock_arc() {
            None if waits && !is_in_pool() => (wait(lock)?, true),
            guard => (guard?, false),
        };
        Some(Self {
            guard: Some(guard),
            devices: devices.to_vec(),
            waited,
        })
    }
}

/// Waits for the lock. Returns `None` if its holder makes no progress.
fn wait(lock: &Arc<Mutex<()>>) -> Option<ArcMutexGuard<RawMutex, ()>> {
    lock::check_none_held("the random generators are waited for");
    let mut before = PROGRESS.load(Ordering::Relaxed);
    loop {
        if let Some(guard) = lock.try_lock_arc_for(TIMEOUT) {
            return Some(guard);
        }
        let progress = PROGRESS.load(Ordering::Relaxed);
        if progress == before {
            return None;
        }
        before = progress;
    }
}

impl Debug for RngLock {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RngLock").finish_non_exhaustive()
    }
}

impl Drop for RngLock {
    fn drop(&mut self) {
        // With `fusion`, queued operations draw their numbers when they run. The next use of a lost device reports it.
        if catch(|| self.devices.iter().for_each(flush)).is_err() {
            log::debug!("a device could not draw its numbers");
        }
        PROGRESS.fetch_add(1, Ordering::Relaxed);
        // The next thread takes its turn even if this one locks again immediately.
        if let Some(guard) = self.guard.take() {
            ArcMutexGuard::unlock_fair(guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn lock_held_without_progress_is_not_taken() {
        let lock = Arc::default();
        let held = RngLock::take(&lock, &[], true).unwrap();
        assert!(RngLock::take(&lock, &[], false).is_none());
        assert!(RngLock::take(&lock, &[], true).is_none());
        thread::scope(|scope| {
            let waits = scope.spawn(|| RngLock::take(&lock, &[], true));
            thread::sleep(Duration::from_millis(50));
            drop(held);
            assert!(waits.join().unwrap().unwrap().waited);
        });
    }
}
