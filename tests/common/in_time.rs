//! A limit to the time of a test.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ends the test if `work` has not ended in time.
pub fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        let _ = sender.send(result);
    });
    let result = receiver.recv_timeout(Duration::from_secs(120));
    match result.expect("a thread hangs") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}
