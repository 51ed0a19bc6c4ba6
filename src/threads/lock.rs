//! Locks with a fixed order: the lock of a local parameter, of its compute copy, of its master, of the optimizer. A
//! thread holds none of the first three while it calls a hook or waits for a rank. (A step may wait for the prefetch of an
//! optimizer state, which takes none of these locks.) Between two passes only the caller's thread runs. Builds with debug assertions
//! check this, except on threads of a rayon pool: while such a thread waits for an optimizer, it may run another training.
//! `tracing-mutex` has no such exception, and does not check calls of user code.

use std::cell::Cell;

use parking_lot::Mutex;

/// The levels of locks, in the order in which a thread may take them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    LocalParam = 1,
    ComputeCopy = 2,
    MasterParam = 4,
}

thread_local! {
    /// The levels that this thread holds, one bit each.
    static HELD: Cell<u8> = const { Cell::new(0) };
    /// `true` on a background thread while it is the only thread of a pool, where no other training runs.
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if this thread belongs to a rayon pool that may run other trainings.
pub(crate) fn is_in_pool() -> bool {
    rayon::current_thread_index().is_some() && !IS_ALONE.get()
}

/// Runs `work` on a thread that is the only one of its pool.
pub(super) fn alone<R>(work: impl FnOnce() -> R) -> R {
    IS_ALONE.set(true);
    let result = work();
    IS_ALONE.set(false);
    result
}

/// Panics if this thread is about to wait or to call user code while it holds one of these locks.
pub(crate) fn check_none_held(doing: &str) {
    if cfg!(debug_assertions) {
        assert!(
            HELD.get() == 0 || is_in_pool(),
            "{doing} while a local parameter or a master is locked"
        );
    }
}

#[cfg(debug_assertions)]
pub(crate) use checked::Leveled;

/// A lock of a level.
#[cfg(not(debug_assertions))]
pub(crate) type Leveled<T> = Mutex<T>;

/// Creates a lock of this level.
pub(crate) fn leveled<T>(level: Level, value: T) -> Leveled<T> {
    let value = Mutex::new(value);
    #[cfg(debug_assertions)]
    return Leveled { level, value };
    #[cfg(not(debug_assertions))]
    {
        let _ = level;
        value
    }
}

/// Locks that check their order.
#[cfg(debug_assertions)]
mod checked {
    use std::ops::{Deref, DerefMut};

    use parking_lot::MutexGuard;

    use super::{HELD, Level, Mutex};

    /// A lock of a level.
    #[derive(Debug)]
    pub(crate) struct Leveled<T> {
        pub(super) level: Level,
        pub(super) value: Mutex<T>,
    }

    impl<T> Leveled<T> {
        pub(crate) fn lock(&self) -> Locked<'_, T> {
            #[cfg(test)]
            crate::threads::schedule::point();
            let (level, held) = (self.level, HELD.get());
            assert!(
                held < level as u8 || super::is_in_pool(),
                "a {level:?} is locked while another is (held: {held:#b})"
            );
            HELD.set(held | level as u8);
            let value = self.value.lock();
            Locked { level, value }
        }

        /// Locks if the lock is free. A try never waits, so it may be out of order.
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.value.try_lock()
        }
    }

    /// A guard of a [`Leveled`] lock.
    pub(crate) struct Locked<'a, T> {
        level: Level,
        value: MutexGuard<'a, T>,
    }

    impl<T> Deref for Locked<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.value
        }
    }

    impl<T> DerefMut for Locked<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value
        }
    }

    impl<T> Drop for Locked<'_, T> {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(self.level as u8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a LocalParam is locked while another is")]
    fn local_parameter_locked_after_master_panics() {
        let (local, master) = (
            leveled(Level::LocalParam, ()),
            leveled(Level::MasterParam, ()),
        );
        {
            let _local = local.lock();
            let _master = master.lock();
        }
        let _master = master.lock();
        let _local = local.lock();
    }

    #[test]
    #[should_panic(expected = "a hook is called while")]
    fn lock_held_in_hook_panics() {
        let master = leveled(Level::MasterParam, ());
        let master = master.lock();
        drop(master);
        check_none_held("nothing is done");
        let local = leveled(Level::LocalParam, ());
        let _local = local.lock();
        check_none_held("a hook is called");
    }
}
