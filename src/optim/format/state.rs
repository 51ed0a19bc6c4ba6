use std::fmt::{Display, Formatter};

use burn::config::{Config, config_to_json};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::root::{Coding, GROUP, Root, TO_THE_NEAREST, Width};
use crate::device::sent;

/// How an optimizer keeps its states.
///
/// It is [`Full`](Self::Full) in a config that does not tell, as those of Burn's optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<Told>", into = "Option<Told>")]
pub enum StateFormat {
    /// In the float type in which it computes.
    Full,
    /// A code of 8 bits an element, and a scale in f32 for every 64: 1.0625 bytes.
    Bits8,
    /// A code of 4 bits an element, and a scale in f32 for every 64: 0.5625 bytes.
    Bits4,
}

/// What a config tells.
#[derive(Serialize, Deserialize)]
enum Told {
    Full,
    Bits8,
    Bits4,
}

impl From<Option<Told>> for StateFormat {
    fn from(told: Option<Told>) -> Self {
        match told {
            None | Some(Told::Full) => Self::Full,
            Some(Told::Bits8) => Self::Bits8,
            Some(Told::Bits4) => Self::Bits4,
        }
    }
}

impl From<StateFormat> for Option<Told> {
    fn from(format: StateFormat) -> Self {
        Some(match format {
            StateFormat::Full => Told::Full,
            StateFormat::Bits8 => Told::Bits8,
            StateFormat::Bits4 => Told::Bits4,
        })
    }
}

impl Config for StateFormat {}

impl Display for StateFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

/// Parameters of fewer elements (norms, biases) keep full states: they cost nothing, and are sensitive.
pub(crate) const MIN_ELEMENTS: usize = 4096;

impl StateFormat {
    /// The codes for the states of a parameter of so many elements, unless they are full.
    pub(crate) fn coding(self, root: Root, elements: usize) -> Option<Coding> {
        let width = match self {
            _ if elements < MIN_ELEMENTS => return None,
            Self::Full => return None,
            Self::Bits8 => Width::Eight,
            Self::Bits4 => Width::Four,
        };
        Some(Coding { root, width })
    }
}

/// An optimizer state of the shape of its parameter.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There is one to a parameter.
pub(crate) enum StateTensor<const D: usize> {
    /// As it is.
    Full(Tensor<D>),
    /// In codes of a few bits.
    Packed(PackedState<D>),
}

/// An optimizer state in codes of a few bits.
#[derive(Clone, Debug)]
pub(crate) struct PackedState<const D: usize> {
    /// The codes of all groups, each filled up, in words of 32 bits: every device has that type.
    pub(crate) codes: Tensor<1, Int>,
    /// One for each group.
    pub(crate) scales: Tensor<1>,
    pub(crate) coding: Coding,
    pub(crate) shape: Shape,
}

impl<const D: usize> StateTensor<D> {
    /// The state of a parameter before the first step.
    pub(crate) fn blank(parameter: &Tensor<D>, coding: Coding) -> Self {
        let (shape, device) = (parameter.shape(), parameter.device());
        let groups = shape.num_elements().div_ceil(GROUP);
        let words = groups * coding.width.group_bytes() / 4;
        Self::Packed(PackedState {
            codes: Tensor::zeros([words], (&device, DType::U32)),
            scales: Tensor::zeros([groups], (&device, DType::F32)),
            coding,
            shape,
        })
    }

    /// The state as it is, or what its codes stand for, in f32.
    pub(crate) fn full(self) -> Tensor<D> {
        match self {
            Self::Full(state) => state,
            Self::Packed(packed) => packed.decoded(),
        }
    }

    /// The shape of its parameter.
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Full(state) => state.shape(),
            Self::Packed(packed) => packed.shape.clone(),
        }
    }

    /// The same in these codes, or full.
    pub(crate) fn conformed(self, coding: Option<Coding>) -> Self {
        match (self, coding) {
            (Self::Packed(packed), Some(coding)) if packed.coding == coding => Self::Packed(packed),
            (state, Some(coding)) => Self::Packed(PackedState::encoded(state.full(), coding)),
            (state, None) => Self::Full(state.full()),
        }
    }

    /// The same on another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        match self {
            Self::Full(state) => Self::Full(sent(state, device)),
            Self::Packed(packed) => Self::Packed(PackedState {
                codes: sent(packed.codes, device),
                scales: sent(packed.scales, device),
                ..packed
            }),
        }
    }
}

impl<const D: usize> PackedState<D> {
    /// The codes of `state`, rounded to the nearest: what was decoded gets its codes again.
    pub(crate) fn encoded(state: Tensor<D>, coding: Coding) -> Self {
        let (shape, device) = (state.shape(), state.device());
        let values: Vec<f32> = state.into_data().iter::<f32>().collect();
        let groups = values.len().div_ceil(GROUP);
        let bytes = coding.width.group_bytes();
        let mut words = vec![0_u32; groups * bytes / 4];
        let mut scales = vec![0.0_f32; groups];
        let codes = bytemuck::cast_slice_mut::<u32, u8>(&mut words).chunks_mut(bytes);
        for ((values, codes), scale) in values.chunks(GROUP).zip(codes).zip(&mut scales) {
            let mut group = [0.0; GROUP];
            group[..values.len()].copy_from_slice(values);
            *scale = coding.encode(&group, &TO_THE_NEAREST, codes);
        }
        let length = words.len();
        let codes = TensorData::new(words, [length]);
        let scales = TensorData::new(scales, [groups]);
        Self {
            codes: Tensor::from_data(codes, (&device, DType::U32)),
            scales: Tensor::from_data(scales, (&device, DType::F32)),
            coding,
            shape,
        }
    }

    /// What the codes stand for, in f32.
    fn decoded(self) -> Tensor<D> {
        let device = self.scales.device();
        let words: Vec<u32> = self.codes.into_data().iter::<u32>().collect();
        let scales = self.scales.into_data();
        let bytes = self.coding.width.group_bytes();
        let groups = bytemuck::cast_slice::<u32, u8>(&words).chunks(bytes);
        let mut values = Vec::with_capacity(groups.len() * GROUP);
        for (codes, scale) in groups.zip(scales.iter::<f32>()) {
            values.extend_from_slice(&self.coding.decode(codes, scale));
        }
        values.truncate(self.shape.num_elements());
        let data = TensorData::new(values, self.shape);
        Tensor::from_data(data, (&device, DType::F32))
    }
}
