//! Runs code that could wait for the very thread that waits for it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// A second run that takes so much longer than twenty first ones counts as stuck.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The worker of this thread. There is one, since a device may keep something for every thread.
    static WORKER: RefCell<Option<Sender<Job>>> = const { RefCell::new(None) };
}

/// Does the second run of the block `name` on another thread.
///
/// Burn's graphs are locked during the backward pass: an operation on a tensor of the graph, which a
/// closure can have captured, would wait for ever. So it waits on another thread, and this one, which
/// holds the lock, gives up by a panic.
pub(super) fn run<R: Send + 'static>(
    again: impl FnOnce() -> R + Send + 'static,
    took: Duration,
    name: &str,
) -> R {
    let (sender, receiver) = channel();
    let job = Box::new(move || {
        // A caller that has given up does not listen any more.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(again)));
    });
    WORKER.with_borrow_mut(|worker| {
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
        Ok(Err(panic)) => resume_unwind(panic),
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
