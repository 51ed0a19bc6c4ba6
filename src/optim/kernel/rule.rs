use std::array::from_fn;
use std::fmt::Debug;
use std::sync::Arc;

use super::super::format::{GROUP, Noise, WeightFormat};
use super::super::rule::{AverageRule, Number, Traced, UpdateRule};
use super::super::vectorized::{Loop, vectorized};

/// States that a rule has at most, with an average of the parameter.
pub(super) const MOST_STATES: usize = 3;

/// A formula with the hyperparameters of a step, of whatever type it is.
#[derive(Clone, Debug)]
pub struct Rule {
    /// How many states it updates.
    pub(in crate::optim) states: usize,
    pub(super) formula: Arc<dyn Formula>,
}

impl Rule {
    /// The rule of this formula. It has three states at most: with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        const { assert!(S <= MOST_STATES, "a rule has three states at most") };
        Self {
            states: S,
            formula: Arc::new(OfStates::<_, S>(rule)),
        }
    }
}

/// What a step does with every element.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(super) rule: Rule,
    /// How an average of the parameter goes on, if the last of the states is one.
    pub(super) average: Option<AverageRule>,
    /// How the weight is kept, and rounded. Without it all operands are in floats of one type, and the step is computed in
    /// that, or in f32 if it is half of it; with it, in f32 whatever they are.
    pub(super) formats: Option<(WeightFormat, Noise)>,
}

impl Update {
    /// What is done, operation by operation.
    pub(super) fn traced(&self) -> Traced {
        self.rule.formula.traced(self.average)
    }
}

/// What is done with a formula whose type is known.
pub(super) trait Formula: Apply<f32> + Apply<f64> + Debug + Send + Sync {
    /// What it does and how an `average` of the parameter goes on then, operation by operation.
    fn traced(&self, average: Option<AverageRule>) -> Traced;
}

/// A formula for numbers of a type, on the processor.
pub(super) trait Apply<N>: Sync {
    /// Updates all of these. They are as many, but for states that the formula has not: those are empty.
    fn apply(&self, parameters: &mut [N], gradients: &[N], states: [&mut [N]; MOST_STATES]);
}

#[derive(Debug)]
pub(super) struct OfStates<R, const S: usize>(pub(super) R);

impl<R: UpdateRule<S>, const S: usize> Formula for OfStates<R, S> {
    fn traced(&self, average: Option<AverageRule>) -> Traced {
        Traced::of(&self.0, average)
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

/// Elements of a block, which stays in the first cache. They are few, so that the processor fetches those of the next block
/// while it computes.
pub(super) const BLOCK: usize = 8 * GROUP;
/// Elements that are worth a thread.
const GRAIN: usize = 64 * BLOCK;

/// Lets `each` update so many elements, parts of them on several threads if they are many: `take` takes off the first.
pub(super) fn on_threads<T: Send>(
    length: usize,
    mut all: T,
    take: fn(&mut T, usize) -> T,
    each: &(impl Fn(T) + Sync),
) {
    if length <= GRAIN {
        return each(all);
    }
    let half = (length / 2).next_multiple_of(GROUP);
    let first = take(&mut all, half);
    rayon::join(
        || on_threads(half, first, take, each),
        || on_threads(length - half, all, take, each),
    );
}
