//! A step with formats on the processor.

use burn::tensor::{DType, Device, Element, Int, Shape, Tensor, TensorData};

use super::super::format::{Coding, LowBits, PackedState, StateTensor, Weight};
use super::group_pass::{GroupPass, OpenGradient};
use super::group_slices::{StateSlice, Weights};
use super::group_step::GroupStep;

/// Opens the operands, passes over them, and closes them again.
pub(super) fn update<const D: usize>(
    step: GroupStep,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let Weight {
        value,
        format,
        low_bits,
    } = weight;
    let device = value.device();
    let mut value = value.into_data();
    let mut low = low_bits.map(|low| (low.words.into_data(), low.elements));
    let mut open: Vec<OpenState> = states.into_iter().map(OpenState::of).collect();
    let words = low.as_mut().map(|(words, _)| elements::<u32>(words));
    let words = words.unwrap_or_default();
    let weights = match value.dtype() {
        DType::F32 => Weights::F32(elements(&mut value)),
        DType::F16 => Weights::F16(elements(&mut value)),
        _ => Weights::in_format(format, elements(&mut value), words),
    };
    step.rule.update_groups(GroupPass {
        weights,
        states: open.iter_mut().map(OpenState::slice).collect(),
        gradient: OpenGradient::of(gradient),
        noise: step.noise,
    });
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
    let states = open.into_iter().map(|state| state.closed(&device));
    (weight, states.collect())
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
