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
#[derive(Debug)]
pub(crate) enum Stage {
    /// The closure computes the loss; a backward pass inside of it is a mistake.
    Forward,
    /// Gradients may arrive.
    Backward,
    /// It has failed: gradients arrive and are dropped.
    Failed(Failed),
    /// It is over: nothing of it may be used any more.
    Over,
}

/// How a pass has failed.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    /// The first failure, until it is told.
    pub(super) by: Option<Failure>,
    /// Whether one was in the use of a gradient: what the others of its parameter have sent is not used either.
    pub(super) in_use: bool,
}

/// What has ended a pass.
#[derive(Debug)]
pub(super) enum Failure {
    Error(FusedError),
    Panic(Caught),
    /// A panic for this reason that passes through Burn's backward pass.
    GivenUp(String),
}

impl Stage {
    /// The failure of a pass that goes on, or has failed already; none when it is over.
    pub(super) fn failed(&mut self) -> Option<&mut Failed> {
        if let Self::Forward | Self::Backward = self {
            *self = Self::Failed(Failed::default());
        }
        match self {
            Self::Failed(failed) => Some(failed),
            _ => None,
        }
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self, Self::Failed(failed) if matches!(failed.by, Some(Failure::GivenUp(_))))
    }
}
