//! Whose thread a block runs on.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::thread::{ThreadId, current, scope};

thread_local! {
    /// The thread that this one runs blocks for.
    static RUNS_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// The thread of the user's that this one is, or runs blocks for.
pub(super) fn thread() -> ThreadId {
    RUNS_FOR.get().unwrap_or_else(|| current().id())
}

/// Puts back for which thread this one ran blocks before, when dropped.
struct RunsFor {
    before: Option<ThreadId>,
}

impl Drop for RunsFor {
    fn drop(&mut self) {
        RUNS_FOR.set(self.before);
    }
}

/// Does the second run of a block whose first was on `thread`, here.
pub(super) fn here<R>(thread: ThreadId, run: impl FnOnce() -> R) -> R {
    let _runs_for = RunsFor {
        before: RUNS_FOR.replace(Some(thread)),
    };
    run()
}

/// The same on a thread of its own, where Burn has no update of a state aside.
pub(super) fn apart<R: Send>(thread: ThreadId, run: impl FnOnce() -> R + Send) -> R {
    let result = scope(|threads| threads.spawn(|| here(thread, run)).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}
