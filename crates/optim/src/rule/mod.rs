//! What an optimizer does to one element, and the loop that does it to many.

mod formulas;
mod number;
mod trace;

use std::array::from_fn;
use std::fmt::Debug;
use std::sync::Arc;

use burn::optim::LearningRate;

use super::vectorized::{Loop, vectorized};

pub(crate) use formulas::{
    Adam, AdamW, AverageRule, Cautious, Decayed, Lion, Moments, Momentum, Set, Sgd,
};
pub use number::Number;
#[cfg(feature = "cubecl")]
pub(crate) use trace::Program;
pub(crate) use trace::{Operation, Traced};

/// How an optimizer updates one element of a parameter, with `S` states, three at most: a formula, whose fields are the
/// hyperparameters of a step: [an example](crate#an-optimizer-of-your-own).
///
/// On `flex` it is compiled like any function. For all else it is traced, once a step: run with numbers that note what is
/// done with them. On a CubeCL device these operations are a kernel, which is compiled when it is new, so what is decided
/// by a field (not what is computed with one) makes another. Backends without a kernel, and remote servers, compute them as
/// tensor operations.
pub trait UpdateRule<const S: usize>: Clone + Debug + Send + Sync + 'static {
    /// Returns the parameter and its states after the step. (`#[inline(always)]` lets the loop around it be compiled
    /// for what the processor can do.)
    fn update<N: Number>(&self, parameter: N, gradient: N, states: [N; S]) -> (N, [N; S]);

    /// The same for some elements. (Plain loops: closures are compiled for any processor.)
    #[doc(hidden)]
    #[inline(always)]
    fn update_lanes<N: Number, const L: usize>(
        &self,
        parameters: &mut [N; L],
        gradients: &[N; L],
        states: &mut [[N; L]; S],
    ) {
        for lane in 0..L {
            let mut column = [gradients[lane]; S];
            for state in 0..S {
                column[state] = states[state][lane];
            }
            let (parameter, column) = self.update(parameters[lane], gradients[lane], column);
            parameters[lane] = parameter;
            for state in 0..S {
                states[state][lane] = column[state];
            }
        }
    }
}

/// A step of a parameter, or what the gradient of a micro-batch does to its states: an
/// [`ElementWise`](crate::ElementWise) optimizer makes its rule of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step {
    /// Zero for a micro-batch that is not the last of its group: the parameter does not move.
    pub learning_rate: LearningRate,
    /// Its number, from one on. A group of micro-batches is one step.
    pub time: i32,
    /// Whether there was no state before.
    pub is_first: bool,
    /// Whether the gradient is added to those of the micro-batches before it: states have decayed with the first.
    pub adds: bool,
}

impl Step {
    /// What a state is multiplied by that decays by this `factor` once a step.
    pub fn decay(&self, factor: f64) -> f64 {
        if self.adds { 1.0 } else { factor }
    }
}

/// The most states of a rule.
pub(crate) const MOST_STATES: usize = 3;

/// A formula with the hyperparameters of a step, of whatever type it is.
#[derive(Clone, Debug)]
pub struct Rule {
    /// How many states it updates.
    pub(crate) states: usize,
    pub(crate) formula: Arc<dyn Formula>,
    /// Set for the formula of a user.
    pub(crate) may_panic: bool,
}

impl Rule {
    /// The rule of this formula. It has three states at most: with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        const { assert!(S <= MOST_STATES, "a rule has three states at most") };
        Self {
            may_panic: true,
            ..Self::built_in(rule)
        }
    }

    /// Returns the rule of a formula of this crate, which does not panic.
    pub(crate) fn built_in<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        Self {
            states: S,
            formula: Arc::new(OfStates::<_, S>(rule)),
            may_panic: false,
        }
    }
}

/// What is done with a formula whose type is known.
pub(crate) trait Formula: Apply<f32> + Apply<f64> + Debug + Send + Sync {
    /// What it does, operation by operation.
    fn traced(&self) -> Traced;
}

/// A formula for numbers of a type, on the processor.
pub(crate) trait Apply<N>: Sync {
    /// Updates all of these. They are as many, but for states that the formula has not: those are empty.
    fn apply(&self, parameters: &mut [N], gradients: &[N], states: [&mut [N]; MOST_STATES]);
}

#[derive(Debug)]
pub(crate) struct OfStates<R, const S: usize>(pub(crate) R);

impl<R: UpdateRule<S>, const S: usize> Formula for OfStates<R, S> {
    fn traced(&self) -> Traced {
        Traced::of(&self.0)
    }
}

impl<R: UpdateRule<S>, N: Number, const S: usize> Apply<N> for OfStates<R, S> {
    fn apply(&self, parameters: &mut [N], gradients: &[N], states: [&mut [N]; MOST_STATES]) {
        let mut states = states.into_iter();
        let states = from_fn(|_| states.next().expect("there are three"));
        vectorized(Run(&self.0, parameters, gradients, states));
    }
}

/// Elements that are computed together, in registers.
const LANES: usize = 16;

/// The inner loop, compiled for what the processor can do.
struct Run<'a, R, N, const S: usize>(&'a R, &'a mut [N], &'a [N], [&'a mut [N]; S]);

impl<R: UpdateRule<S>, N: Number, const S: usize> Loop for Run<'_, R, N, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(rule, weights, gradients, mut states) = self;
        // Its own, so that hyperparameters stay in registers whatever is written.
        let rule = &rule.clone();
        let length = weights.len();
        let whole = length - length % LANES;
        for start in (0..whole).step_by(LANES) {
            lanes::<N, R, S, LANES>(rule, weights, gradients, &mut states, start);
        }
        for start in whole..length {
            lanes::<N, R, S, 1>(rule, weights, gradients, &mut states, start);
        }
    }
}

/// Updates `L` elements. They are read before any is written, so the compiler need not ask whether the buffers overlap.
/// (Plain loops: closures are compiled for any processor.)
#[inline(always)]
fn lanes<N: Number, R: UpdateRule<S>, const S: usize, const L: usize>(
    rule: &R,
    weights: &mut [N],
    gradients: &[N],
    states: &mut [&mut [N]; S],
    start: usize,
) {
    let mut values = load::<N, L>(weights, start);
    let gradients = load::<N, L>(gradients, start);
    let mut rows = [[N::of(0.0); L]; S];
    for state in 0..S {
        rows[state] = load::<N, L>(states[state], start);
    }
    rule.update_lanes(&mut values, &gradients, &mut rows);
    weights[start..start + L].copy_from_slice(&values);
    for state in 0..S {
        states[state][start..start + L].copy_from_slice(&rows[state]);
    }
}

#[inline(always)]
fn load<N: Number, const L: usize>(from: &[N], start: usize) -> [N; L] {
    let mut values = [N::of(0.0); L];
    values.copy_from_slice(&from[start..start + L]);
    values
}
