//! Random thread schedules for tests. At each [`point`] a thread continues, yields or sleeps. `loom` and `shuttle` can't do this: they
//! replace the locks of the program, and those of Burn and rayon can't be replaced.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Position in the random numbers of the schedule; zero if schedules are not shuffled.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Shuffles thread schedules by `seed` until the guard is dropped.
pub(crate) fn shuffle(seed: u64) -> ShuffleGuard {
    NEXT.store(mix(seed, 1) | 1 << 63, Ordering::Relaxed);
    ShuffleGuard
}

pub(crate) struct ShuffleGuard;

impl Drop for ShuffleGuard {
    fn drop(&mut self) {
        NEXT.store(0, Ordering::Relaxed);
    }
}

/// Delays the thread at random. Called before a lock is taken or a message is sent.
pub(crate) fn point() {
    if NEXT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let number = mix(NEXT.fetch_add(1, Ordering::Relaxed), 2);
    match number % 16 {
        0 => thread::sleep(Duration::from_micros(number >> 32 & 127)),
        1..6 => thread::yield_now(),
        _ => {}
    }
}

/// Returns a number for each seed and count.
fn mix(seed: u64, count: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, count).hash(&mut hasher);
    hasher.finish()
}
