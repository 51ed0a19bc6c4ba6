//! The message of a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message of the panic in which `work` ends.
#[track_caller]
pub fn panic_of<R>(work: impl FnOnce() -> R) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(work)) else {
        panic!("there is no panic");
    };
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast_ref::<&str>().unwrap().to_string(),
    }
}
