//! The stage of a pass, and its failure.

use backburn_base::caught::Caught;
use burn::tensor::Device;

use crate::error::FusedError;

/// The kind of closure that a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClosureKind {
    /// It returns a loss.
    Loss,
    /// It runs the backward pass itself, and scales the loss for it.
    Backward,
    /// No closure: accumulated gradients are applied.
    Nothing,
}

/// The stage of a pass.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The closure computes the loss; a backward pass inside of it is an error.
    Forward,
    /// Gradients may arrive.
    Backward,
    /// The pass has failed: gradients that arrive are dropped.
    Failed(Failed),
    /// The pass is over: its values must not be used.
    Over,
}

/// The failure of a pass.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    /// The first failure, until it is taken.
    pub(crate) by: Option<Failure>,
    /// `true` if an update has failed: gradients that have already arrived are not applied either.
    pub(super) in_update: bool,
}

/// The part of a pass that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedIn {
    /// The closure, or the backward pass on its thread.
    Closure,
    /// An update after the backward pass or on another thread, or a policy that stops an update.
    Update,
}

/// The reason why a pass has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(FusedError),
    Panic(Caught),
    /// A deadlock in Burn's backward pass. The panic must pass through Burn, because Burn would never return.
    Deadlock(String),
}

impl From<FusedError> for Failure {
    fn from(error: FusedError) -> Self {
        Self::Error(error)
    }
}

impl From<Caught> for Failure {
    fn from(panic: Caught) -> Self {
        match panic.downcast() {
            Ok(error) => Self::Error(error),
            Err(panic) => Self::Panic(panic),
        }
    }
}

impl Failure {
    /// Returns the error, or resumes the panic.
    pub(crate) fn into_result<R>(self) -> Result<R, FusedError> {
        match self {
            Self::Error(error) => Err(error),
            Self::Panic(panic) => panic.resume(),
            Self::Deadlock(reason) => panic!("{reason}"),
        }
    }

    /// Returns the message.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            Self::Panic(panic) => panic.message().to_string(),
            Self::Deadlock(reason) => reason.clone(),
        }
    }

    /// Returns the error of a step whose rank has failed. `repeated` is `true` if the rank may have drawn other random
    /// numbers than in the previous pass.
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
