use std::any::{Any, type_name};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::pass::Readers;

/// What a recomputed block is called in messages: its type, and the place in the model of the
/// parameters that it has read.
pub(super) fn name<B>(readers: &Readers) -> String {
    let place = readers.place();
    match place.is_empty() {
        true => format!("`{}`", type_name::<B>()),
        false => format!("`{place}` (`{}`)", type_name::<B>()),
    }
}

/// Does `work`, and puts before the message of a panic in it where it was.
pub(super) fn located<R>(work: impl FnOnce() -> R, place: impl FnOnce() -> String) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| match message(&*payload) {
        Some(message) => panic!("{} panicked: {message}", place()),
        None => resume_unwind(payload),
    })
}

fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    let string = payload.downcast_ref::<String>().map(String::as_str);
    string.or_else(|| payload.downcast_ref::<&str>().copied())
}
