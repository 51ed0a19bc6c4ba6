//! Assertions that show what they have found.

use std::fmt::Display;

#[track_caller]
pub fn assert_says(found: &impl Display, words: &str) {
    let found = found.to_string();
    assert!(found.contains(words), "`{words}` is not in: {found}");
}

/// Panics unless a value matches a pattern.
#[allow(unused_macros)] // Each program uses a part.
macro_rules! assert_matches {
    ($value:expr, $($pattern:tt)+) => {
        match &$value {
            $($pattern)+ => {}
            other => panic!("another value: {other:?}"),
        }
    };
}

pub(crate) use assert_matches;
