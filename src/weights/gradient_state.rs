use std::sync::Arc;

use crate::parameters::AnyTensor;
use crate::pass::{Graph, PendingCount};
use crate::policy::PartialSum;
use crate::replica::{HeldBytes, Membership};

/// What passes have left for an update.
#[derive(Clone, Debug, Default)]
pub(crate) enum Accumulated {
    #[default]
    Nothing,
    /// The sum of their gradients.
    Sum(Box<AnyTensor>),
    /// The pass under way has added to their sum, in its buffer: unless it ends well, the sum is lost.
    Overwritten,
    /// The optimizer state holds gradients of a group that has not ended.
    InOptimizerState,
}

impl Accumulated {
    /// The sum, if there is one; it stays there unless it is `spent`.
    pub(super) fn sum(&mut self, spent: bool) -> Option<AnyTensor> {
        match self {
            Self::Sum(sum) if !spent => Some((**sum).clone()),
            Self::Sum(_) => match std::mem::take(self) {
                Self::Sum(sum) => Some(*sum),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The gradient of a parameter on one rank in a pass.
#[derive(Debug, Default)]
pub(super) enum GradientState {
    /// The parameter was not read.
    #[default]
    Idle,
    /// The parameter was read: gradients will arrive from taps, and from blocks that are to be recomputed.
    Accumulating(Box<Expecting>),
    /// The gradient that was `received`, or its absence, has been reported to the home.
    Done { received: bool },
}

/// A gradient that is not complete.
#[derive(Debug, Default)]
pub(super) struct Expecting {
    /// The tap, and the graph it is in: every further read there returns it, so autodiff sums the uses.
    pub(super) tapped: Option<(Arc<Graph>, AnyTensor)>,
    /// What is to come.
    pub(super) pending_count: PendingCount,
    /// The sum of what has come.
    pub(super) partial: Option<Box<PartialSum>>,
}

/// What the ranks have said about their gradients of a parameter in a pass.
#[derive(Debug, Default)]
pub(super) struct RankGradients {
    given: usize,
    /// By rank, where the value rests.
    gradients: Vec<Option<HeldGradient>>,
}

/// A gradient that is counted with what the owner holds.
#[derive(Debug)]
pub(super) struct HeldGradient {
    pub(super) gradient: AnyTensor,
    pub(super) hold: HeldBytes,
}

impl RankGradients {
    /// Notes what a rank has, and returns what all have, by rank, when this was the last.
    pub(super) fn set(
        &mut self,
        member: &Membership,
        gradient: Option<HeldGradient>,
    ) -> Option<Vec<Option<HeldGradient>>> {
        let ranks = member.group.ranks();
        self.gradients.resize_with(ranks, || None);
        self.gradients[member.rank] = gradient;
        self.given += 1;
        let all = (self.given == ranks).then(|| std::mem::take(self));
        all.map(|answers| answers.gradients)
    }
}

/// What the home has made of the gradient of a pass.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was added to what had been accumulated: the sum, for the end of the pass.
    Added(Box<AnyTensor>),
    /// A hook has measured it.
    Measured,
    /// The optimizer state has taken it; the parameter moves with the last of the group.
    Began,
    /// The optimizer has stepped the parameter. `copied` says whether something else held the value, so
    /// that it was copied; none if the backend can't tell.
    Updated { copied: Option<bool> },
    /// A hook kept it from being used.
    Vetoed,
}

/// What happened to one parameter in a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterReport {
    /// A gradient arrived, or one that was accumulated was used.
    pub(crate) received: bool,
    /// The optimizer stepped the parameter.
    pub(crate) updated: bool,
    /// Someone else held the value, so it was copied to be updated. None if the backend can't tell, or
    /// there was no update.
    pub(crate) copied: Option<bool>,
    /// A gradient arrived, and a hook kept it from being used.
    pub(crate) vetoed: bool,
}

impl ParameterReport {
    /// What happened to it on another rank, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.received |= other.received;
        self.updated |= other.updated;
        self.copied = self.copied.or(other.copied);
        self.vetoed |= other.vetoed;
    }
}
