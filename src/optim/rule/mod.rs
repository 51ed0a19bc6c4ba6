//! What each optimizer does to one element: the formulas, in the order in which Burn computes them.

mod adam;
mod adamw;
mod lion;
mod moments;
#[cfg(feature = "remote")]
mod numbers;
mod sgd;

use num_traits::Float;

pub(crate) use adam::Adam;
pub(crate) use adamw::AdamW;
pub(crate) use lion::Lion;
pub(crate) use moments::Moments;
#[cfg(feature = "remote")]
pub(crate) use numbers::RuleNumbers;
pub(crate) use sgd::Sgd;

/// How an optimizer updates one element of a parameter, with `S` states.
pub(crate) trait UpdateRule<const S: usize>: Copy + Send + Sync {
    /// Returns the parameter and its states after the step.
    fn update<F: Float>(&self, parameter: F, gradient: F, states: [F; S]) -> (F, [F; S]);
}

/// The rules there are, with the hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Adam(Adam),
    AdamW(AdamW<false>),
    CautiousAdamW(AdamW<true>),
    Lion(Lion),
    Sgd(Sgd),
}

/// What is done with a rule once its type is known, with as many states as there are.
pub(crate) trait RuleVisitor {
    type Output;

    fn visit<const S: usize>(self, rule: impl UpdateRule<S>) -> Self::Output;
}

impl Rule {
    /// Whether it updates parameters with so many states.
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn takes(&self, states: usize) -> bool {
        match self {
            Self::Adam(_) | Self::AdamW(_) | Self::CautiousAdamW(_) => matches!(states, 2 | 3),
            Self::Lion(_) => states == 1,
            Self::Sgd(_) => states <= 1,
        }
    }

    pub(crate) fn accept<V: RuleVisitor>(self, states: usize, visitor: V) -> V::Output {
        match (self, states) {
            (Self::Adam(rule), 2) => visitor.visit::<2>(rule),
            (Self::Adam(rule), _) => visitor.visit::<3>(rule),
            (Self::AdamW(rule), 2) => visitor.visit::<2>(rule),
            (Self::AdamW(rule), _) => visitor.visit::<3>(rule),
            (Self::CautiousAdamW(rule), 2) => visitor.visit::<2>(rule),
            (Self::CautiousAdamW(rule), _) => visitor.visit::<3>(rule),
            (Self::Lion(rule), _) => visitor.visit::<1>(rule),
            (Self::Sgd(rule), 0) => visitor.visit::<0>(rule),
            (Self::Sgd(rule), _) => visitor.visit::<1>(rule),
        }
    }
}

/// A hyperparameter in the type of the computation: Burn converts its scalars the same way.
#[inline(always)]
fn scalar<F: Float>(value: f64) -> F {
    F::from(value).expect("floats convert to one another")
}
