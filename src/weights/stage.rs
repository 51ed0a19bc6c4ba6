use std::sync::Arc;

use burn::tensor::Tensor;

use super::report::ParameterReport;
use crate::pass::{Debt, Graph};
use crate::policy::PartialSum;

/// What passes have left for an update, with the sum of their gradients or without it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accumulated<S = ()> {
    #[default]
    Nothing,
    Sum(S),
    /// The pass under way has added to their sum, in its buffer: unless it ends well, the sum is lost.
    Overwritten,
    /// The optimizer state holds gradients of a group that has not ended.
    InOptimizerState,
}

impl<S: Clone> Accumulated<S> {
    /// The sum, if there is one; it stays there unless it is `spent`.
    pub(super) fn sum(&mut self, spent: bool) -> Option<S> {
        match self {
            Self::Sum(sum) if !spent => Some(sum.clone()),
            Self::Sum(_) => match std::mem::replace(self, Self::Nothing) {
                Self::Sum(sum) => Some(sum),
                _ => None,
            },
            _ => None,
        }
    }
}

impl<S> Accumulated<S> {
    pub(super) fn without_sum(&self) -> Accumulated {
        match self {
            Self::Nothing => Accumulated::Nothing,
            Self::Sum(_) => Accumulated::Sum(()),
            Self::Overwritten => Accumulated::Overwritten,
            Self::InOptimizerState => Accumulated::InOptimizerState,
        }
    }
}

/// Where the view of a parameter stands in a pass.
#[derive(Debug, Default)]
pub(super) enum Stage<const D: usize> {
    #[default]
    Unread,
    /// It was read: gradients are to come, from taps and from blocks that have yet to run again.
    Expecting(Box<Expecting<D>>),
    /// It owes nothing any more: the home has been told what it has, a gradient that it has `received` or none.
    Answered { received: bool },
}

/// A gradient that is not complete.
#[derive(Debug, Default)]
pub(super) struct Expecting<const D: usize> {
    /// The tap, and the graph it is in: every further read there returns it, so autodiff sums the uses.
    pub(super) tapped: Option<(Arc<Graph>, Tensor<D>)>,
    /// What is to come.
    pub(super) debt: Debt,
    /// The sum of what has come.
    pub(super) partial: Option<Box<PartialSum<D>>>,
}

impl<const D: usize> Expecting<D> {
    /// Whether the parameter was read in this graph.
    pub(super) fn is_tapped_in(&self, graph: &Arc<Graph>) -> bool {
        let tapped = self.tapped.as_ref();
        tapped.is_some_and(|(read_in, _)| Arc::ptr_eq(read_in, graph))
    }
}

/// What the home has made of the gradient of a pass.
#[derive(Debug)]
pub(super) enum Outcome<const D: usize> {
    /// It was added to what had been accumulated: the sum, for the end of the pass.
    Added(Box<Tensor<D>>),
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

impl<const D: usize> Outcome<D> {
    pub(super) fn report(&self) -> ParameterReport {
        ParameterReport {
            received: true,
            updated: matches!(self, Self::Updated { .. }),
            copied: match self {
                Self::Updated { copied } => *copied,
                _ => None,
            },
            vetoed: matches!(self, Self::Vetoed),
        }
    }
}
