use std::fmt::Debug;

use burn::grad_clipping::GradientClippingConfig;

use super::format::SquareRootCode;
use super::rule::{Rule, Step};

/// An optimizer that updates each element of a parameter independently of the others. An implementation declares the states
/// of an element and the formula.
///
/// [`ElementWiseOptimizer`](super::ElementWiseOptimizer) turns it into a Burn optimizer: [an
/// example](super#an-optimizer-of-your-own).
pub trait ElementWise: Clone + Debug + Send + Sync + 'static {
    /// States of each element.
    const STATES: &'static [ElementState];

    /// Name of the number of steps in a record. If it is `None`, steps are not counted, and each step has the
    /// [`time`](Step::time) of the first.
    const TIME: Option<&'static str> = Some("time");

    /// Returns the formula of a step. It takes all of [`STATES`](Self::STATES), or only the first ones. A step panics if it
    /// takes more, or if a state that it leaves out is not [optional](ElementState::optional), because a record needs all
    /// others. A state that is left out keeps its value from a record.
    fn rule(&self, step: Step) -> Rule;
}

/// An optimizer whose state can accumulate the gradients of micro-batches, so that no gradient buffer is needed:
/// [`Adam`](super::Adam), [`AdamW`](super::AdamW) and [`Sgd`](super::Sgd) with momentum.
///
/// The state decays once, before the first gradient of a group, and the parameter is updated with the last. For `Sgd`
/// the result equals a step with the sum of the gradients. For Adam's second moment it is an approximation, AdamA
/// ([Zhang et al., 2023](https://arxiv.org/abs/2305.19982)): the sum of the squares of the gradients `g_i` replaces the
/// square of their sum,
///
/// ```text
/// m = beta_1 m + (1 - beta_1) (g_1 + .. + g_n)
/// v = beta_2 v + (1 - beta_2) (g_1^2 + .. + g_n^2)
/// ```
///
/// An optimizer of your own supports this if its [`rule`](ElementWise::rule) uses [`Step::decay`](super::Step::decay), and uses
/// a gradient only to add to its states.
///
/// `backburn::FusedOptimizer::accumulating_in_state` trains with such an optimizer.
#[diagnostic::on_unimplemented(
    message = "the state of `{Self}` can't take the gradients of micro-batches",
    label = "accumulates in no optimizer state",
    note = "use `backburn::optim::{{Adam, AdamW, Sgd}}`, or accumulate in a buffer with `FusedOptimizer::new`"
)]
pub trait AccumulateInState: ElementWise {
    /// Returns the reason if the options of this optimizer don't allow it.
    fn refusal(&self) -> Option<&'static str> {
        None
    }
}

/// Returns the reason if this clipping of the config doesn't allow micro-batches in a state.
pub(super) fn refusal_of_clipping(
    clipping: &Option<GradientClippingConfig>,
) -> Option<&'static str> {
    clipping.as_ref().map(|_| {
        "the gradient clipping of the config needs the sum of the gradients, and the state receives each of them: clip with \
        `GlobalNormClippingConfig::Lagged`, or accumulate in a buffer"
    })
}

/// A state of each element of a parameter in an [`ElementWise`] optimizer. Its name in a record can contain dots, like the
/// names of Burn's nested states.
#[derive(Clone, Copy, Debug)]
pub struct ElementState {
    /// Name in a record.
    pub(super) name: &'static str,
    /// Square-root code of the quantized state; `None` for the maximum of the previous state.
    pub(super) root: Option<SquareRootCode>,
    pub(super) is_optional: bool,
}

impl ElementState {
    /// Creates a state of either sign, which starts with zeros.
    pub const fn signed(name: &'static str) -> Self {
        Self {
            name,
            root: Some(SquareRootCode::Signed),
            is_optional: false,
        }
    }

    /// Creates a state that is never negative and starts with zeros.
    pub const fn positive(name: &'static str) -> Self {
        Self {
            root: Some(SquareRootCode::Positive),
            ..Self::signed(name)
        }
    }

    /// Creates the running maximum of the previous state, which starts with negative infinity. It always has `Full` format, and
    /// is the last state.
    ///
    /// The previous state then has `Full` format too. A quantized state is correct on average, but a maximum of such values is
    /// too large. After 20,000 steps of normal gradients with `beta_2` 0.999, it would be 1.4 times that of f32 in 8 bits and
    /// 3.1 times in 4, for elements of a tenth of their group's largest gradient.
    pub const fn maximum(name: &'static str) -> Self {
        Self {
            name,
            root: None,
            is_optional: true,
        }
    }

    /// Allows a record without this state.
    pub const fn optional(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    /// Returns the value before the first step: negative infinity for a maximum, otherwise negative zero, with which a sum
    /// keeps every bit and the sign of zeros.
    pub(super) fn blank(self) -> f32 {
        match self.root {
            Some(_) => -0.0,
            None => f32::NEG_INFINITY,
        }
    }
}
