//! The lock of Burn's random generators, which are one per process.
//!
//! # Invariants
//!
//! A run that must draw repeatable numbers holds the lock from its seed to its last number. A thread never waits
//! for another rank while it holds the lock.

use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};

use crate::device::flush;
use crate::error::FusedError;
use crate::lock;

/// The longest time that one pass may hold the lock while another waits for it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The lock of Burn's generators. Its key is a pass or a group.
pub(crate) static GENERATORS: GeneratorLock = GeneratorLock::new(TIMEOUT);

/// The lock of blocks on several threads of the closure that holds [`GENERATORS`].
static THREADS: GeneratorLock = GeneratorLock::new(TIMEOUT);

/// A lock that the same key or the same thread may take again. It may be released on another thread.
#[derive(Debug)]
pub(crate) struct GeneratorLock {
    holder: Mutex<Option<Holder>>,
    free: Condvar,
    timeout: Duration,
}

#[derive(Debug)]
struct Holder {
    key: usize,
    thread: ThreadId,
    times: usize,
    since: Instant,
}

/// The guard of a lock of the generators.
#[derive(Debug)]
#[must_use]
pub(crate) struct RngLock {
    lock: &'static GeneratorLock,
    devices: Vec<Device>,
}

impl GeneratorLock {
    const fn new(timeout: Duration) -> Self {
        Self {
            holder: Mutex::new(None),
            free: Condvar::new(),
            timeout,
        }
    }

    /// Takes the lock to draw on `devices`, for the owner at the address of `key`. If another key holds the lock,
    /// waits; without `waits` it returns `None`.
    ///
    /// # Errors
    ///
    /// If the holder keeps the lock for longer than [`TIMEOUT`].
    pub(crate) fn take<T: ?Sized>(
        &'static self,
        key: &T,
        devices: &[Device],
        waits: bool,
    ) -> Result<Option<RngLock>, FusedError> {
        if waits {
            lock::check_none_held("the random generators are waited for");
        }
        let key = std::ptr::from_ref(key).cast::<()>().addr();
        let guard = || RngLock {
            lock: self,
            devices: devices.to_vec(),
        };
        let thread = current().id();
        let mut holder = self.holder.lock();
        loop {
            let since = match holder.as_mut() {
                None => break,
                Some(own) if own.key == key || own.thread == thread => {
                    own.times += 1;
                    return Ok(Some(guard()));
                }
                Some(other) => other.since,
            };
            if !waits {
                return Ok(None);
            }
            let until = since + self.timeout;
            if Instant::now() >= until {
                return Err(FusedError::RandomNumbersLocked {
                    waited: self.timeout,
                });
            }
            self.free.wait_until(&mut holder, until);
        }
        *holder = Some(Holder {
            key,
            thread,
            times: 1,
            since: Instant::now(),
        });
        Ok(Some(guard()))
    }
}

impl RngLock {
    /// Takes the lock between the threads of a closure that holds the other lock. The same thread may take it again.
    ///
    /// # Errors
    ///
    /// If another thread keeps the lock for longer than [`TIMEOUT`].
    pub(crate) fn among_threads() -> Result<Option<Self>, FusedError> {
        thread_local! {
            static KEY: u8 = const { 0 };
        }
        KEY.with(|key| THREADS.take(key, &[], true))
    }
}

impl Drop for RngLock {
    fn drop(&mut self) {
        // With `fusion`, queued operations draw their numbers when they run.
        self.devices.iter().for_each(flush);
        let mut holder = self.lock.holder.lock();
        let held = holder.as_mut().expect("a guard holds the lock");
        held.times -= 1;
        if held.times == 0 {
            *holder = None;
            self.lock.free.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    static KEYS: [u8; 3] = [0; 3];

    fn lock(timeout: Duration) -> &'static GeneratorLock {
        Box::leak(Box::new(GeneratorLock::new(timeout)))
    }

    #[test]
    fn lock_held_too_long_is_an_error() {
        let lock = lock(Duration::from_millis(20));
        let take = |key: usize, waits| lock.take(&KEYS[key], &[], waits);
        let _held = take(1, true).unwrap().unwrap();
        // The same thread takes it again for another key.
        let _again = take(2, true).unwrap().unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| (take(2, false), take(2, true)));
            let (at_once, late) = other.join().unwrap();
            assert!(matches!(at_once, Ok(None)));
            assert!(matches!(late, Err(FusedError::RandomNumbersLocked { .. })));
            // Another thread takes it again for the same key, and releases it.
            let same = scope.spawn(|| take(1, true).unwrap().is_some());
            assert!(same.join().unwrap());
        });
    }

    #[test]
    fn lock_released_is_taken_by_waiting_thread() {
        let lock = lock(Duration::from_secs(60));
        let held = lock.take(&KEYS[1], &[], true).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| lock.take(&KEYS[2], &[], true));
            drop(held);
            let taken = waits.join().unwrap();
            assert!(matches!(taken, Ok(Some(_))));
            assert!(matches!(lock.take(&KEYS[1], &[], false), Ok(None)));
        });
    }
}
