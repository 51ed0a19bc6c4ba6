//! How far a pass is, and what has ended it.

use burn::tensor::Device;

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
    /// The first failure, until it is taken.
    pub(super) by: Option<Failure>,
    /// Whether one was in an update: gradients that have arrived by then are not applied either.
    pub(super) in_update: bool,
}

/// The part of a pass that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedIn {
    /// The closure, or the backward pass on its thread.
    Backward,
    /// The update of a parameter, on whichever thread.
    Update,
}

/// What has ended a pass.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(FusedError),
    Panic(Caught),
    /// A panic for this reason that passes through Burn's backward pass, which would never end.
    Deadlock(String),
}

impl From<FusedError> for Failure {
    fn from(error: FusedError) -> Self {
        Self::Error(error)
    }
}

impl From<Caught> for Failure {
    fn from(panic: Caught) -> Self {
        Self::Panic(panic)
    }
}

impl Failure {
    /// Goes on with it.
    pub(crate) fn go_on<R>(self) -> Result<R, FusedError> {
        match self {
            Self::Error(error) => Err(error),
            Self::Panic(panic) => panic.resume(),
            Self::Deadlock(reason) => panic!("{reason}"),
        }
    }

    /// What it says.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            Self::Panic(panic) => panic.message().to_string(),
            Self::Deadlock(reason) => reason.clone(),
        }
    }

    /// The error of a step if this has ended the pass of a rank, which may be `repeated` if it has drawn other random
    /// numbers than the one before.
    pub(crate) fn on_rank(self, rank: usize, device: &Device, repeated: bool) -> FusedError {
        let device = format!("{device:?}");
        match self {
            Self::Error(error @ FusedError::RandomNumbers { .. }) if repeated => error,
            Self::Error(error) => FusedError::Rank {
                rank,
                device,
                error: Box::new(error),
            },
            panic => FusedError::RankPanicked {
                rank,
                device,
                message: panic.message(),
            },
        }
    }
}
