//! Runs code that could wait for the very thread that waits for it.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use crate::caught::{Caught, catch};

type Job = Box<dyn FnOnce() + Send>;

/// A second run that takes so much longer than twenty first ones counts as stuck.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The worker of this thread. There is one, since a device may keep something for every thread.
    static WORKER: RefCell<Option<Sender<Job>>> = const { RefCell::new(None) };
    /// The thread that this one runs blocks for.
    static RUNS_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// The thread of the user's that this one is, or runs blocks for.
pub(super) fn thread() -> ThreadId {
    RUNS_FOR
        .get()
        .unwrap_or_else(|| std::thread::current().id())
}

/// Puts back, when dropped, what this thread has run blocks for before.
struct RunsFor(Option<ThreadId>);

impl RunsFor {
    fn set(thread: ThreadId) -> Self {
        Self(RUNS_FOR.replace(Some(thread)))
    }
}

impl Drop for RunsFor {
    fn drop(&mut self) {
        RUNS_FOR.set(self.0);
    }
}

/// Where a block runs for the second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Here,
    /// On the worker of this thread.
    Worker,
    /// On a thread of its own.
    Apart,
}

/// Does the second run of the block `name`, whose first run was on `thread`.
///
/// Burn's graphs are locked during the backward pass: an operation on a tensor of the graph, which a
/// closure can have captured, would wait for ever. So it waits on another thread, and this one, which
/// holds the lock, gives up by a panic.
pub(super) fn run<R: Send + 'static>(
    place: Place,
    thread: ThreadId,
    again: impl FnOnce() -> R + Send + 'static,
    took: Duration,
    name: &str,
) -> R {
    if place == Place::Here {
        let _before = RunsFor::set(thread);
        return again();
    }
    let (sender, receiver) = channel();
    let job = Box::new(move || {
        let _before = RunsFor::set(thread);
        // A caller that has given up does not listen any more.
        let _ = sender.send(catch(again));
    });
    WORKER.with_borrow_mut(|worker| {
        if place == Place::Apart {
            let _ = start().send(job);
            return;
        }
        let unsent = match worker {
            Some(worker) => worker.send(job).map_err(|unsent| unsent.0),
            None => Err(job as Job),
        };
        if let Err(job) = unsent {
            let fresh = start();
            let _ = fresh.send(job);
            *worker = Some(fresh);
        }
    });
    match receiver.recv_timeout(PATIENCE + 20 * took) {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Caught::resume(panic),
        Err(_) => {
            // The next one would wait behind it.
            WORKER.set(None);
            panic!(
                "the second run of the recomputed block {name} waits for the backward pass that it is \
                 part of: its closure computes with a tracked tensor from outside of it, whose autodiff \
                 graph is locked now. Pass the tensor as an input, or detach it before the block. The \
                 parameters of the block and those before it are unchanged"
            )
        }
    }
}

fn start() -> Sender<Job> {
    let (sender, jobs) = channel::<Job>();
    std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
    sender
}
