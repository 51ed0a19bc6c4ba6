//! How far a pass is, and what has ended it.

use std::any::Any;

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
pub(super) enum Failure {
    Error(FusedError),
    Panic(Box<dyn Any + Send>),
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(error) => write!(f, "Error({error})"),
            Self::Panic(_) => f.write_str("Panic"),
        }
    }
}
