use std::fmt::Debug;
use std::sync::Arc;

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;

use super::super::rule::{Traced, UpdateRule};
#[cfg(feature = "flex")]
use super::flex;
use super::group_pass::GroupPass;

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

    /// Applies it to every element, on `flex`.
    #[cfg(feature = "flex")]
    pub(super) fn update_on_flex(
        &self,
        parameter: FlexTensor,
        gradient: FlexTensor,
        states: Vec<FlexTensor>,
    ) -> (FlexTensor, Vec<FlexTensor>) {
        self.0.update_on_flex(parameter, gradient, states)
    }

    /// Applies it to groups of elements, on the processor.
    pub(super) fn update_groups(&self, pass: GroupPass<'_>) {
        self.0.update_groups(pass);
    }
}

/// What is done with a rule whose type is known.
trait AnyRule: Debug + Send + Sync {
    fn states(&self) -> usize;
    fn traced(&self) -> Traced;
    #[cfg(feature = "flex")]
    fn update_on_flex(
        &self,
        parameter: FlexTensor,
        gradient: FlexTensor,
        states: Vec<FlexTensor>,
    ) -> (FlexTensor, Vec<FlexTensor>);
    fn update_groups(&self, pass: GroupPass<'_>);
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

    #[cfg(feature = "flex")]
    fn update_on_flex(
        &self,
        parameter: FlexTensor,
        gradient: FlexTensor,
        states: Vec<FlexTensor>,
    ) -> (FlexTensor, Vec<FlexTensor>) {
        flex::update(&self.0, parameter, gradient, states)
    }

    fn update_groups(&self, pass: GroupPass<'_>) {
        pass.run(&self.0);
    }
}
