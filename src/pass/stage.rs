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
    /// The first failure, until it is told.
    pub(super) by: Option<Failure>,
    /// Whether one was in the use of a gradient: what the others of its parameter have sent is not used either.
    pub(super) in_use: bool,
}

/// What has ended a pass.
#[derive(Debug)]
pub(crate) enum Failure {
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

impl Failure {
    /// Goes on with it.
    pub(crate) fn go_on<R>(self) -> Result<R, FusedError> {
        match self {
            Self::Error(error) => Err(error),
            Self::Panic(panic) => panic.resume(),
            Self::GivenUp(reason) => panic!("{reason}"),
        }
    }

    /// What it says.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            Self::Panic(panic) => panic.message().to_string(),
            Self::GivenUp(reason) => reason.clone(),
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
