//! How far a pass is, and what has ended it.

use crate::caught::Caught;
use crate::error::FusedError;

/// What the closure of a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closure {
    /// It returns a loss.
    Loss,
    /// It runs the backward pass itself, and scales the loss for it.
    Backward,
    /// There is none: what has been accumulated is used.
    Nothing,
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The closure computes the loss; a backward pass inside of it is a mistake.
    Forward,
    /// Gradients may arrive.
    Backward,
    /// A failure has ended it: gradients arrive and are dropped.
    Failed,
    /// It is over: nothing of it may be used any more.
    Over,
}

/// What has ended a pass.
#[derive(Debug)]
pub(super) enum Failure {
    Error(FusedError),
    Panic(Caught),
}
