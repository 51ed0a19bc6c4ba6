use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use super::super::rule::{AverageRule, Traced, UpdateRule, WithAverage};
use super::pass::Pass;

/// A formula with the hyperparameters of a step, of whatever type it is.
#[derive(Clone, Debug)]
pub struct Rule(pub(in crate::optim) Arc<dyn AnyRule>);

impl Rule {
    /// The rule of this formula. It has three states at most: with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self
    where
        States: AtMostThree<S>,
    {
        let with_average = States::with_average;
        Self(Arc::new(Typed::<_, S> { rule, with_average }))
    }
}

/// The numbers of states that a rule can have.
#[doc(hidden)]
#[derive(Debug)]
pub struct States;

#[doc(hidden)]
#[diagnostic::on_unimplemented(message = "a rule has three states at most")]
pub trait AtMostThree<const S: usize> {
    /// `rule` with one state more, an average of the parameter, if it can have that.
    fn with_average<R: UpdateRule<S>>(rule: R, average: AverageRule) -> Option<Rule>;
}

macro_rules! and_an_average {
    ($($states:literal => $more:literal)*) => {
        $(
            impl AtMostThree<$states> for States {
                fn with_average<R: UpdateRule<$states>>(rule: R, average: AverageRule) -> Option<Rule> {
                    let rule = WithAverage { rule, average };
                    Some(Rule(Arc::new(Typed::<_, $more> { rule, with_average: |_, _| None })))
                }
            }
        )*
    };
}

and_an_average!(0 => 1 1 => 2 2 => 3);

impl AtMostThree<3> for States {
    fn with_average<R: UpdateRule<3>>(_rule: R, _average: AverageRule) -> Option<Rule> {
        None
    }
}

/// What is done with a rule whose type is known.
pub(in crate::optim) trait AnyRule: Debug + Send + Sync {
    /// How many states it updates.
    fn states(&self) -> usize;

    /// The same with an average of the parameter as its last state; none if it has all that a rule can have.
    fn with_average(&self, average: AverageRule) -> Option<Rule>;

    /// What it does, operation by operation.
    fn traced(&self) -> Traced;

    /// Applies it to every element, on the processor.
    fn run(&self, pass: Pass<'_>);
}

/// Makes a rule with an average of one without.
type JoinAverage<R> = fn(R, AverageRule) -> Option<Rule>;

struct Typed<R, const S: usize> {
    rule: R,
    with_average: JoinAverage<R>,
}

impl<R: Debug, const S: usize> Debug for Typed<R, S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.rule.fmt(f)
    }
}

impl<R: UpdateRule<S>, const S: usize> AnyRule for Typed<R, S> {
    fn states(&self) -> usize {
        S
    }

    fn with_average(&self, average: AverageRule) -> Option<Rule> {
        (self.with_average)(self.rule.clone(), average)
    }

    fn traced(&self) -> Traced {
        Traced::of(&self.rule)
    }

    fn run(&self, pass: Pass<'_>) {
        pass.run(&self.rule);
    }
}
