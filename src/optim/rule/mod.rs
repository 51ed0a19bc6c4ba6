//! What an optimizer does to one element.

mod formulas;
mod number;
#[cfg(feature = "remote")]
mod sent;
mod trace;

use std::fmt::Debug;

use burn::optim::LearningRate;

pub(crate) use formulas::{Adam, AdamW, AverageRule, Decayed, Lion, Moments, Momentum, Set, Sgd};
pub use number::Number;
#[cfg(any(feature = "cubecl", feature = "remote"))]
pub(crate) use trace::Program;
pub(crate) use trace::{Operation, Traced};

/// How an optimizer updates one element of a parameter, with `S` states, three at most: a formula, whose fields are the
/// hyperparameters of a step: [an example](crate::optim#an-optimizer-of-your-own).
///
/// On `flex` it is compiled like any function. For all else it is traced, once a step: run with numbers that note what is
/// done with them. On a CubeCL device these operations are a kernel, which is compiled when it is new, so what is decided
/// by a field (not what is computed with one) makes another. Backends without a kernel do them with whole tensors; a
/// server that hosts `flex`, with sixteen elements at a time, which takes some times as long as the formula itself.
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
/// [`ElementWise`](crate::optim::ElementWise) optimizer makes its rule of it.
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
