//! Update rules for one element, and the loop that applies them to many.

mod number;
mod trace;

use std::array::from_fn;
use std::fmt::Debug;
use std::sync::Arc;

use burn::optim::LearningRate;

pub(crate) use backburn_base::{Loop, vectorized};

pub use number::Number;
#[cfg(feature = "cubecl")]
pub(crate) use trace::Program;
pub(crate) use trace::{Operation, Traced};

/// A rule that updates one element of a parameter with `S` states, three at most. Its fields are the hyperparameters
/// of a step: [an example](crate#an-optimizer-of-your-own).
///
/// On `flex` it is compiled like any function, for f32. Elsewhere it is traced once per step: it runs with numbers that record the
/// operations. On a CubeCL device these operations become a kernel, which is compiled once. A decision that depends on a field
/// compiles another kernel; a computation with a field does not. Backends without a kernel, remote servers, and f64 on
/// `flex` run them as tensor operations.
pub trait UpdateRule<const S: usize>: Clone + Debug + Send + Sync + 'static {
    /// Returns the parameter and its states after the step. With `#[inline(always)]` the enclosing loop is compiled for the
    /// instruction set of the processor.
    fn update<N: Number>(&self, parameter: N, gradient: N, states: [N; S]) -> (N, [N; S]);
}

/// The input from which an [`ElementWise`](crate::ElementWise) optimizer builds its rule: a step of a parameter, or the
/// gradient of a micro-batch that changes only the states.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Step {
    /// Learning rate; zero for a micro-batch that is not the last of its group, so that the parameter does not move.
    pub learning_rate: LearningRate,
    /// Number of the step, from 1. A group of micro-batches is one step.
    pub time: i32,
    /// `true` if there was no state before.
    pub is_first: bool,
    /// `true` if the gradient is added to those of earlier micro-batches: states have decayed with the first.
    pub adds: bool,
}

impl Step {
    /// Returns `factor` for the first gradient of a step, and 1 for gradients that are added to it.
    pub fn decay(&self, factor: f64) -> f64 {
        if self.adds { 1.0 } else { factor }
    }
}

/// Returns the gradient with an L2 penalty, if there is one.
#[inline(always)]
pub(crate) fn penalized<N: Number>(penalty: Option<f64>, parameter: N, gradient: N) -> N {
    match penalty {
        Some(penalty) => parameter * N::of(penalty) + gradient,
        None => gradient,
    }
}

/// Largest number of states of a rule.
pub(crate) const MOST_STATES: usize = 3;

/// An update rule with its type erased.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Number of states that the rule updates.
    pub(crate) states: usize,
    pub(crate) formula: Arc<dyn Formula>,
    /// `true` for the rule of a user.
    pub(crate) may_panic: bool,
}

impl Rule {
    /// Creates the rule of a formula with three states at most; with more it does not compile.
    pub fn new<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        const { assert!(S <= MOST_STATES, "a rule has three states at most") };
        Self {
            may_panic: true,
            ..Self::built_in(rule)
        }
    }

    /// Creates the rule of a formula of this crate, which does not panic.
    pub(crate) fn built_in<const S: usize>(rule: impl UpdateRule<S>) -> Self {
        Self {
            states: S,
            formula: Arc::new(OfStates::<_, S>(rule)),
            may_panic: false,
        }
    }
}

/// Operations on a formula of a known type.
pub(crate) trait Formula: Debug + Send + Sync {
    /// Returns the operations of the formula.
    fn traced(&self) -> Traced;

    /// Updates all elements on the processor. All slices have the same length, but unused states are empty.
    fn apply(&self, parameters: &mut [f32], gradients: &[f32], states: [&mut [f32]; MOST_STATES]);
}

#[derive(Debug)]
struct OfStates<R, const S: usize>(R);

impl<R: UpdateRule<S>, const S: usize> Formula for OfStates<R, S> {
    fn traced(&self) -> Traced {
        Traced::of(&self.0)
    }

    fn apply(&self, parameters: &mut [f32], gradients: &[f32], states: [&mut [f32]; MOST_STATES]) {
        let mut states = states.into_iter();
        let states = from_fn(|_| states.next().expect("there are three"));
        vectorized(Run(&self.0, parameters, gradients, states));
    }
}

/// Number of elements that are computed together, in registers.
const LANES: usize = 16;

/// The inner loop, compiled for the instruction set of the processor.
struct Run<'a, R, const S: usize>(&'a R, &'a mut [f32], &'a [f32], [&'a mut [f32]; S]);

impl<R: UpdateRule<S>, const S: usize> Loop for Run<'_, R, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(rule, weights, gradients, mut states) = self;
        // A copy, so that hyperparameters stay in registers across writes.
        let rule = &rule.clone();
        let length = weights.len();
        let whole = length - length % LANES;
        for start in (0..whole).step_by(LANES) {
            lanes::<R, S, LANES>(rule, weights, gradients, &mut states, start);
        }
        for start in whole..length {
            lanes::<R, S, 1>(rule, weights, gradients, &mut states, start);
        }
    }
}

/// Updates `L` elements. All reads precede the writes, so the compiler need not check whether the buffers overlap. Plain loops
/// only: a closure is compiled for the baseline processor.
#[inline(always)]
fn lanes<R: UpdateRule<S>, const S: usize, const L: usize>(
    rule: &R,
    weights: &mut [f32],
    gradients: &[f32],
    states: &mut [&mut [f32]; S],
    start: usize,
) {
    let mut values: [f32; L] = load(weights, start);
    let gradients: [f32; L] = load(gradients, start);
    let mut rows = [[0.0; L]; S];
    for state in 0..S {
        rows[state] = load(states[state], start);
    }
    for lane in 0..L {
        let mut column = [0.0; S];
        for state in 0..S {
            column[state] = rows[state][lane];
        }
        (values[lane], column) = rule.update(values[lane], gradients[lane], column);
        for state in 0..S {
            rows[state][lane] = column[state];
        }
    }
    weights[start..start + L].copy_from_slice(&values);
    for state in 0..S {
        states[state][start..start + L].copy_from_slice(&rows[state]);
    }
}

#[inline(always)]
fn load<const L: usize>(from: &[f32], start: usize) -> [f32; L] {
    let mut values = [0.0; L];
    values.copy_from_slice(&from[start..start + L]);
    values
}
