use std::any::{Any, type_name};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use parking_lot::Mutex;

use crate::pass::Readers;

/// What a recomputed block is called in messages: its type, and the place in the model of the
/// parameters that it has read.
pub(super) fn name<B>(readers: &Mutex<Readers>) -> String {
    let readers = readers.lock();
    let mut paths = readers.paths();
    let place = paths.next().unwrap_or_default().to_string();
    let place = paths.fold(place, |place, path| common(&place, path));
    match place.is_empty() {
        true => format!("`{}`", type_name::<B>()),
        false => format!("`{place}` (`{}`)", type_name::<B>()),
    }
}

/// The module that both paths go through.
fn common(a: &str, b: &str) -> String {
    let pairs = a.split('.').zip(b.split('.'));
    let names: Vec<&str> = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    names.join(".")
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
