//! The lock of Burn's random generators, which are one per process.
//!
//! # Invariants
//!
//! Runs that have to draw the same numbers twice hold it from their seed to their last number. A thread never waits
//! for another rank while it holds the lock.

use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};

use crate::device::hand_over;
use crate::error::FusedError;
use crate::lock;

/// The longest time that one pass may hold the lock while another waits for it.
const LONGEST_HOLD: Duration = Duration::from_secs(600);

static GENERATORS: Lock = Lock::new(LONGEST_HOLD);

/// The lock of blocks on several threads of the closure that holds [`GENERATORS`].
static THREADS: Lock = Lock::new(LONGEST_HOLD);

/// A lock that its key and its thread may take again. It may be released on another thread.
#[derive(Debug)]
struct Lock {
    holder: Mutex<Option<Holder>>,
    free: Condvar,
    longest_hold: Duration,
}

#[derive(Debug)]
struct Holder {
    key: usize,
    thread: ThreadId,
    times: usize,
    since: Instant,
}

/// The holder kept the lock longer than the limit.
#[derive(Debug, PartialEq, Eq)]
struct TimedOut;

impl TimedOut {
    fn error(self) -> FusedError {
        FusedError::RandomNumbersLocked {
            waited: LONGEST_HOLD,
        }
    }
}

impl Lock {
    const fn new(longest_hold: Duration) -> Self {
        Self {
            holder: Mutex::new(None),
            free: Condvar::new(),
            longest_hold,
        }
    }

    /// Takes the lock. If another key holds it, waits, or returns `false` unless it `waits`.
    fn take(&self, key: usize, waits: bool) -> Result<bool, TimedOut> {
        let thread = current().id();
        let mut holder = self.holder.lock();
        loop {
            let since = match holder.as_mut() {
                None => break,
                Some(own) if own.key == key || own.thread == thread => {
                    own.times += 1;
                    return Ok(true);
                }
                Some(other) => other.since,
            };
            if !waits {
                return Ok(false);
            }
            let until = since + self.longest_hold;
            if Instant::now() >= until {
                return Err(TimedOut);
            }
            self.free.wait_until(&mut holder, until);
        }
        *holder = Some(Holder {
            key,
            thread,
            times: 1,
            since: Instant::now(),
        });
        Ok(true)
    }

    fn release(&self) {
        let mut holder = self.holder.lock();
        let held = holder.as_mut().expect("a guard holds the lock");
        held.times -= 1;
        if held.times == 0 {
            *holder = None;
            self.free.notify_all();
        }
    }
}

/// The guard of the lock of Burn's generators.
#[derive(Debug)]
#[must_use]
pub(crate) struct RngLock {
    devices: Vec<Device>,
}

impl RngLock {
    /// Takes the lock to draw on `devices`, for the pass or group at the address of `key`. If another holds it, waits, or
    /// returns `None` unless it `waits`.
    ///
    /// # Errors
    ///
    /// If the holder keeps the lock for [`LONGEST_HOLD`].
    pub(crate) fn take<T: ?Sized>(
        key: &T,
        devices: &[Device],
        waits: bool,
    ) -> Result<Option<Self>, FusedError> {
        if waits {
            lock::check_none_held("the random generators are waited for");
        }
        let key = std::ptr::from_ref(key).cast::<()>().addr();
        match GENERATORS.take(key, waits) {
            Ok(true) => Ok(Some(Self {
                devices: devices.to_vec(),
            })),
            Ok(false) => Ok(None),
            Err(TimedOut) => Err(TimedOut.error()),
        }
    }
}

/// The guard of the lock among the threads of a closure. Its thread may take it again.
#[derive(Debug)]
#[must_use]
pub(crate) struct ThreadLock;

impl ThreadLock {
    /// Takes the lock. The caller holds [`RngLock`].
    ///
    /// # Errors
    ///
    /// If another thread keeps the lock for [`LONGEST_HOLD`].
    pub(crate) fn take() -> Result<Self, FusedError> {
        thread_local! {
            static KEY: u8 = const { 0 };
        }
        let key = KEY.with(|key| std::ptr::from_ref(key).addr());
        THREADS.take(key, true).map_err(TimedOut::error)?;
        Ok(Self)
    }
}

impl Drop for ThreadLock {
    fn drop(&mut self) {
        THREADS.release();
    }
}

impl Drop for RngLock {
    fn drop(&mut self) {
        // Operations that `fusion` has gathered draw their numbers when they run.
        self.devices.iter().for_each(hand_over);
        GENERATORS.release();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn lock_held_too_long_is_an_error() {
        let lock = &Lock::new(Duration::from_millis(20));
        assert_eq!(lock.take(1, true), Ok(true));
        // The same thread takes it again for another key.
        assert_eq!(lock.take(2, true), Ok(true));
        thread::scope(|scope| {
            let other = scope.spawn(|| (lock.take(2, false), lock.take(2, true)));
            assert_eq!(other.join().unwrap(), (Ok(false), Err(TimedOut)));
            // Another thread takes it again for the same key, and releases it.
            let same = scope.spawn(|| {
                let taken = lock.take(1, true);
                lock.release();
                taken
            });
            assert_eq!(same.join().unwrap(), Ok(true));
        });
    }

    #[test]
    fn lock_released_is_taken_by_the_waiting_thread() {
        let lock = &Lock::new(Duration::from_secs(60));
        lock.take(1, true).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| lock.take(2, true));
            lock.release();
            assert_eq!(waits.join().unwrap(), Ok(true));
        });
        assert_eq!(lock.take(1, false), Ok(false));
    }
}
