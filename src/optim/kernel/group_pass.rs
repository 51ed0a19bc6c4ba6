use burn::tensor::Tensor;

use super::super::format::Noise;
use super::super::rule::UpdateRule;
#[cfg(feature = "flex")]
use super::flex;
use super::group_slices::{StateSlice, Weights};
use super::groups::{GradientSource, Groups};

/// A pass over the memory of a weight and its states in formats, which a rule is to make.
pub(super) struct GroupPass<'a> {
    pub(super) weights: Weights<'a>,
    pub(super) states: Vec<StateSlice<'a>>,
    pub(super) gradient: OpenGradient,
    pub(super) noise: Noise,
}

impl GroupPass<'_> {
    pub(super) fn run<const S: usize>(self, rule: &impl UpdateRule<S>) {
        let mut states = self.states.into_iter();
        let states = std::array::from_fn(|_| states.next().expect("a rule knows its states"));
        let groups = Groups::new(self.weights, states);
        match &self.gradient {
            #[cfg(feature = "flex")]
            OpenGradient::Flex(gradient) => {
                flex::update_groups(rule, groups, gradient, self.noise);
            }
            OpenGradient::Read(gradient) => each(rule, groups, gradient, self.noise),
        }
    }
}

#[cfg(feature = "flex")]
use flex::each_group as each;

#[cfg(not(feature = "flex"))]
fn each<const S: usize>(
    rule: &impl UpdateRule<S>,
    groups: Groups<'_, S>,
    gradient: &impl GradientSource,
    noise: Noise,
) {
    groups.update(rule, gradient, noise);
}

/// A gradient that can be read group by group.
pub(super) enum OpenGradient {
    /// As it lies in memory: a view is not copied.
    #[cfg(feature = "flex")]
    Flex(burn::backend::flex::FlexTensor),
    Read(Vec<f32>),
}

impl OpenGradient {
    pub(super) fn of<const D: usize>(gradient: Tensor<D>) -> Self {
        #[cfg(feature = "flex")]
        {
            use burn::backend::{BackendTensor, DispatchTensorKind};
            let kind = gradient.clone().into_dispatch().kind;
            if let DispatchTensorKind::Flex(BackendTensor::Float(gradient)) = kind {
                return Self::Flex(gradient);
            }
        }
        Self::Read(gradient.into_data().iter::<f32>().collect())
    }
}

impl GradientSource for Vec<f32> {
    #[inline(always)]
    fn read(&self, start: usize, into: &mut [f32]) {
        into.copy_from_slice(&self[start..start + into.len()]);
    }
}
