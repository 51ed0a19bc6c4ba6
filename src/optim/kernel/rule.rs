use std::fmt::Debug;
use std::sync::Arc;

use super::super::rule::{AverageRule, Traced, UpdateRule};
use super::pass::Pass;

/// States that a rule has at most, with an average of the parameter.
pub(super) const MOST_STATES: usize = 3;

/// A formula with the hyperparameters of a step, of whatever type it is.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(in crate::optim) formula: Arc<dyn Formula>,
    /// How an average of the parameter goes on after it, if the last of the states is one.
    pub(super) average: Option<AverageRule>,
}

impl Rule {
    /// The rule of this formula. It has three states at most: with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        const { assert!(S <= MOST_STATES, "a rule has three states at most") };
        Self {
            formula: Arc::new(OfStates::<_, S>(rule)),
            average: None,
        }
    }

    /// What it does, operation by operation.
    pub(super) fn traced(&self) -> Traced {
        self.formula.traced(self.average)
    }
}

/// What is done with a formula whose type is known.
pub(in crate::optim) trait Formula: Debug + Send + Sync {
    /// How many states it updates.
    fn states(&self) -> usize;

    /// What it does and how an `average` of the parameter goes on then, operation by operation.
    fn traced(&self, average: Option<AverageRule>) -> Traced;

    /// Applies it to every element, on the processor.
    fn run(&self, pass: Pass<'_>);
}

#[derive(Debug)]
struct OfStates<R, const S: usize>(R);

impl<R: UpdateRule<S>, const S: usize> Formula for OfStates<R, S> {
    fn states(&self) -> usize {
        S
    }

    fn traced(&self, average: Option<AverageRule>) -> Traced {
        Traced::of(&self.0, average)
    }

    fn run(&self, pass: Pass<'_>) {
        pass.run(&self.0);
    }
}
