use std::sync::Arc;

use backburn_base::AnyTensor;

use crate::pass::{Graph, PendingCount};
use crate::policy::PartialSum;
use crate::replica::{HeldBytes, Membership};

/// The gradients that earlier passes have accumulated.
#[derive(Clone, Debug, Default)]
pub(crate) enum Accumulated {
    #[default]
    Nothing,
    /// The sum of their gradients.
    Sum(Box<AnyTensor>),
    /// The current pass has added to the sum in place: if the pass fails, the sum is lost.
    Overwritten,
    /// The optimizer state holds gradients of a group that has not ended.
    InOptimizerState,
}

/// The gradient of a parameter on one rank in a pass.
#[derive(Debug, Default)]
pub(super) enum GradientState {
    /// The parameter was not read.
    #[default]
    Idle,
    /// The parameter was read: gradients will arrive from taps, and from blocks that are to be recomputed.
    Pending(Box<Expecting>),
    /// The gradient, or its absence (`received` is `false`), was reported to the master.
    Done { received: bool },
}

impl GradientState {
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }

    /// Returns `true` if the tap of an earlier read in this graph is kept.
    pub(super) fn is_tapped_in(&self, graph: &Arc<Graph>) -> bool {
        match self {
            Self::Pending(expecting) => {
                let tapped = expecting.tapped.as_ref();
                tapped.is_some_and(|(read_in, _)| Arc::ptr_eq(read_in, graph))
            }
            _ => false,
        }
    }
}

/// An incomplete gradient.
#[derive(Debug, Default)]
pub(super) struct Expecting {
    /// The tap and its graph. Every further read in this graph returns the tap, so autodiff sums the uses.
    pub(super) tapped: Option<(Arc<Graph>, AnyTensor)>,
    /// The number of gradients still expected.
    pub(super) pending_count: PendingCount,
    /// The sum of the gradients that have arrived.
    pub(super) partial: Option<Box<PartialSum>>,
}

/// The gradients of a parameter that the ranks have reported in a pass.
#[derive(Debug, Default)]
pub(super) struct RankGradients {
    reported: usize,
    /// By rank, at the location of the master.
    gradients: Vec<Option<HeldGradient>>,
}

/// A gradient whose bytes are tracked for the owner.
#[derive(Debug)]
pub(super) struct HeldGradient {
    pub(super) gradient: AnyTensor,
    pub(super) hold: HeldBytes,
}

impl RankGradients {
    /// Sets the gradient of a rank. Returns the gradients by rank after the last rank has reported.
    pub(super) fn set(
        &mut self,
        member: &Membership,
        gradient: Option<HeldGradient>,
    ) -> Option<Vec<Option<HeldGradient>>> {
        let ranks = member.group.ranks();
        self.gradients.resize_with(ranks, || None);
        self.gradients[member.rank] = gradient;
        self.reported += 1;
        let all = (self.reported == ranks).then(|| std::mem::take(self));
        all.map(|rank_gradients| rank_gradients.gradients)
    }
}

/// The outcome of a gradient in a pass.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Added to the accumulated sum, which is committed at the end of the pass.
    Added(Box<AnyTensor>),
    /// Measured by a hook, and dropped.
    Measured,
    /// Added to the optimizer state; the parameter is updated with the last micro-batch.
    AddedToState,
    /// Applied by the optimizer. `copied` is `true` if the value had another owner and was copied; `None` if the
    /// backend does not detect that.
    Updated { copied: Option<bool> },
    /// Dropped by a hook.
    Vetoed,
}

/// The report of one parameter in a pass. The report of several ranks is their greatest report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ParameterReport {
    #[default]
    NoGradient,
    /// A gradient arrived, and the optimizer did not step the parameter.
    Received,
    /// A gradient arrived, and a hook vetoed it.
    Vetoed,
    /// The optimizer stepped the parameter. `copied` is as in [`Outcome::Updated`].
    Updated { copied: Option<bool> },
}
