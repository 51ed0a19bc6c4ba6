//! A step with formats on the processor.

use burn::tensor::{DType, Device, Element, Int, Shape, Tensor, TensorData};
use num_traits::Float;

use super::super::format::{Coding, LowBits, Noise, PackedState, StateTensor, Weight};
use super::super::rule::{RuleVisitor, UpdateRule};
#[cfg(feature = "flex")]
use super::flex;
use super::group_step::{GroupStep, GroupUpdate};
use super::groups::{GradientSource, Groups, StateSlice, Weights};

/// Takes a weight to what comes in the place of its gradient.
#[derive(Clone, Copy)]
struct Set;

impl UpdateRule<0> for Set {
    #[inline(always)]
    fn update<F: Float>(&self, _weight: F, number: F, []: [F; 0]) -> (F, [F; 0]) {
        (number, [])
    }
}

/// Opens the operands, passes over them, and closes them again.
pub(super) fn update<const D: usize, const S: usize>(
    step: GroupStep,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: [StateTensor<D>; S],
) -> (Weight<D>, [StateTensor<D>; S]) {
    let Weight {
        value,
        format,
        low_bits,
    } = weight;
    let device = value.device();
    let mut value = value.into_data();
    let mut low = low_bits.map(|low| (low.words.into_data(), low.elements));
    let mut open = states.map(OpenState::of);
    let words = low.as_mut().map(|(words, _)| elements::<u32>(words));
    let words = words.unwrap_or_default();
    let weights = match value.dtype() {
        DType::F32 => Weights::F32(elements(&mut value)),
        DType::F16 => Weights::F16(elements(&mut value)),
        _ => Weights::in_format(format, elements(&mut value), words),
    };
    let pass = Pass {
        weights,
        states: open.iter_mut().map(OpenState::slice).collect(),
        gradient: OpenGradient::of(gradient),
        noise: step.noise,
    };
    match step.update {
        GroupUpdate::Rule(rule) => rule.accept(S, pass),
        GroupUpdate::Set => pass.visit::<0>(Set),
    }
    let value = closed(value, &device);
    let low_bits = low.map(|(words, elements)| LowBits {
        words: closed_words(words, &device),
        format,
        elements,
        is_loaded: false,
    });
    let weight = Weight {
        value,
        format,
        low_bits,
    };
    (weight, open.map(|state| state.closed(&device)))
}

/// The pass over memory, as soon as the type of the rule is known.
struct Pass<'a> {
    weights: Weights<'a>,
    states: Vec<StateSlice<'a>>,
    gradient: OpenGradient,
    noise: Noise,
}

impl RuleVisitor for Pass<'_> {
    type Output = ();

    fn visit<const S: usize>(self, rule: impl UpdateRule<S>) {
        let mut states = self.states.into_iter();
        let states = std::array::from_fn(|_| states.next().expect("a rule knows its states"));
        let groups = Groups::new(self.weights, states);
        match &self.gradient {
            #[cfg(feature = "flex")]
            OpenGradient::Flex(gradient) => {
                flex::update_groups(&rule, groups, gradient, self.noise);
            }
            OpenGradient::Read(gradient) => each(&rule, groups, gradient, self.noise),
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
enum OpenGradient {
    /// As it lies in memory: a view is not copied.
    #[cfg(feature = "flex")]
    Flex(burn::backend::flex::FlexTensor),
    Read(Vec<f32>),
}

impl OpenGradient {
    fn of<const D: usize>(gradient: Tensor<D>) -> Self {
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

/// A state that can be written.
enum OpenState {
    Full(TensorData),
    Packed {
        coding: Coding,
        shape: Shape,
        codes: TensorData,
        scales: TensorData,
    },
}

impl OpenState {
    fn of<const D: usize>(state: StateTensor<D>) -> Self {
        match state {
            StateTensor::Full(state) => Self::Full(state.into_data()),
            StateTensor::Packed(packed) => {
                let PackedState {
                    codes,
                    scales,
                    coding,
                    shape,
                } = packed;
                Self::Packed {
                    coding,
                    shape,
                    codes: codes.into_data(),
                    scales: scales.into_data(),
                }
            }
        }
    }

    fn slice(&mut self) -> StateSlice<'_> {
        match self {
            Self::Full(state) => StateSlice::Full(elements(state)),
            Self::Packed {
                coding,
                codes,
                scales,
                ..
            } => StateSlice::Packed {
                coding: *coding,
                codes: bytemuck::cast_slice_mut(elements::<u32>(codes)),
                scales: elements(scales),
            },
        }
    }

    fn closed<const D: usize>(self, device: &Device) -> StateTensor<D> {
        match self {
            Self::Full(state) => StateTensor::Full(closed(state, device)),
            Self::Packed {
                coding,
                shape,
                codes,
                scales,
            } => StateTensor::Packed(PackedState {
                codes: closed_words(codes, device),
                scales: closed(scales, device),
                coding,
                shape,
            }),
        }
    }
}

/// The elements of `data`, which are of that type.
fn elements<E: Element>(data: &mut TensorData) -> &mut [E] {
    data.as_mut_slice().expect("the type was looked at")
}

fn closed<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}

fn closed_words(words: TensorData, device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(words, (device, DType::U32))
}
