//! Lines on the standard output.

use std::fmt::Arguments;
use std::io::{Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

static FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a line as `println!` does, but an error (a closed pipe, a full disk) does not panic: it ends the training with a checkpoint.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::print::line(format_args!($($text)*))
    };
}
pub(crate) use say;

/// Prints a line. After an error nothing more is printed.
pub fn line(text: Arguments<'_>) {
    if has_failed() {
        return;
    }
    let mut stdout = stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    if written.is_err() {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Returns a number with its noun, such as `1 step` and `2 steps`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Returns `true` if a line could not be printed.
pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}
