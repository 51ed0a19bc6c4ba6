use std::fmt::Debug;
use std::sync::Arc;

use super::super::rule::{Traced, UpdateRule};
use super::pass::Pass;

/// A formula with the hyperparameters of a step, of whatever type it is.
#[derive(Clone, Debug)]
pub struct Rule(Arc<dyn AnyRule>);

impl Rule {
    /// The rule of this formula. It has three states at most: with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        const { assert!(S <= 3, "a rule has three states at most") };
        Self(Arc::new(Typed::<_, S>(rule)))
    }

    /// How many states it updates.
    pub(in crate::optim) fn states(&self) -> usize {
        self.0.states()
    }

    /// What it does, operation by operation.
    pub(super) fn traced(&self) -> Traced {
        self.0.traced()
    }

    /// Applies it to every element, on the processor.
    pub(super) fn run(&self, pass: Pass<'_>) {
        self.0.run(pass);
    }
}

/// What is done with a rule whose type is known.
trait AnyRule: Debug + Send + Sync {
    fn states(&self) -> usize;
    fn traced(&self) -> Traced;
    fn run(&self, pass: Pass<'_>);
}

#[derive(Debug)]
struct Typed<R, const S: usize>(R);

impl<R: UpdateRule<S>, const S: usize> AnyRule for Typed<R, S> {
    fn states(&self) -> usize {
        S
    }

    fn traced(&self) -> Traced {
        Traced::of(&self.0)
    }

    fn run(&self, pass: Pass<'_>) {
        pass.run(&self.0);
    }
}
