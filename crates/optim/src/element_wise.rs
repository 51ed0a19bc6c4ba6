use std::fmt::Debug;

use super::format::Root;
use super::rule::{Rule, Step};

/// An optimizer that updates every element of a parameter by itself: what it keeps for an element, and the formula.
///
/// [`Ruled`](super::Ruled) makes a Burn optimizer of it: [an example](super#an-optimizer-of-your-own).
pub trait ElementWise: Clone + Debug + Send + Sync + 'static {
    /// What it keeps for each element.
    const STATES: &'static [ElementState];

    /// The name of the number of steps in a record; without one, steps are not counted, and each is the first by its
    /// [`time`](Step::time).
    const TIME: Option<&'static str> = Some("time");

    /// The formula of a step, which takes all of the [`STATES`](Self::STATES) or some, from the first on; a step panics
    /// if it takes more. Others that a record has brought along are kept as they are.
    fn rule(&self, step: Step) -> Rule;
}

/// An optimizer whose state can take the gradients of micro-batches one by one, so that no buffer
/// has to add them up: [`Adam`](super::Adam), [`AdamW`](super::AdamW) and [`Sgd`](super::Sgd) with momentum.
///
/// The state decays once, before the first gradient of a group, and the parameter is stepped with the
/// last. For `Sgd` that is the step with the sum of the gradients. For Adam's second moment it is an
/// approximation, AdamA ([Zhang et al., 2023](https://arxiv.org/abs/2305.19982)): the sum of the
/// squares of the gradients `g_i` takes the place of the square of their sum,
///
/// ```text
/// m = beta_1 m + (1 - beta_1) (g_1 + .. + g_n)
/// v = beta_2 v + (1 - beta_2) (g_1^2 + .. + g_n^2)
/// ```
///
/// An optimizer of your own takes part if its [`rule`](ElementWise::rule) looks at [`Step::decay`](super::Step::decay),
/// and uses a gradient for nothing but to add to its states.
///
/// `backburn::FusedOptimizer::accumulating_in_state` trains so.
#[diagnostic::on_unimplemented(
    message = "the state of `{Self}` can't take the gradients of micro-batches",
    label = "accumulates in no optimizer state",
    note = "use `backburn::optim::{{Adam, AdamW, Sgd}}`, or accumulate in a buffer with `FusedOptimizer::new`"
)]
pub trait AccumulateInState: ElementWise {
    /// Why the options of this optimizer don't allow it, if they don't.
    fn refusal(&self) -> Option<&'static str> {
        None
    }
}

/// A state that an [`ElementWise`] optimizer keeps for each element of a parameter. Its name in a record may have points in it, as those
/// of Burn's nested states have.
#[derive(Clone, Copy, Debug)]
pub struct ElementState {
    /// In a record.
    pub(super) name: &'static str,
    /// How it is coded in few bits; without one, it is the maximum of the state before it.
    pub(super) root: Option<Root>,
    pub(super) is_optional: bool,
}

impl ElementState {
    /// One of either sign, which begins with zeros.
    pub const fn signed(name: &'static str) -> Self {
        Self {
            name,
            root: Some(Root::Signed),
            is_optional: false,
        }
    }

    /// One that is never negative, and begins with zeros.
    pub const fn positive(name: &'static str) -> Self {
        Self {
            root: Some(Root::Positive),
            ..Self::signed(name)
        }
    }

    /// The largest that the state before it has been, which begins with negative infinity. It is always full,
    /// and the last of the states.
    ///
    /// So is the state before it then: in few bits it is right on average, and the largest of numbers around the right
    /// one is too large. After 20,000 steps of normal gradients, `beta_2` being 0.999, it would be 1.4 times that of f32
    /// in 8 bits and 3.1 times in 4, for elements of a tenth of their group's largest gradient.
    pub const fn maximum(name: &'static str) -> Self {
        Self {
            name,
            root: None,
            is_optional: true,
        }
    }

    /// One that a record may lack.
    pub const fn optional(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    /// What it is before the first step. What is added to a negative zero is there bit for bit, zeros with their sign.
    pub(super) fn blank(self) -> f32 {
        match self.root {
            Some(_) => -0.0,
            None => f32::NEG_INFINITY,
        }
    }
}
