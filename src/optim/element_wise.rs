use std::fmt::Debug;

use super::format::Root;
use super::kernel::Rule;
use super::rule::Step;

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
