//! The message of a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[track_caller]
pub fn panic_of<R>(work: impl FnOnce() -> R) -> String {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(_) => panic!("there is no panic"),
        Err(payload) => text_of(payload),
    }
}

/// The message in the payload of a panic.
pub fn text_of(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast_ref::<&str>().unwrap().to_string(),
    }
}
