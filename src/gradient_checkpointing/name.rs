use std::any::type_name;

use crate::caught::catch;
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
    catch(work).unwrap_or_else(|panic| match panic.text() {
        Some(message) => panic!("{} panicked: {message}", place()),
        None => panic.resume(),
    })
}
