use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use bytemuck::cast_slice_mut;
use serde::{Deserialize, Serialize};

use super::column::Kept;
use super::root::{Coding, GROUP, Root, Width};
use super::told::told;
use backburn_base::sent;

/// How an optimizer keeps its states.
///
/// It is [`Full`](Self::Full) in a config that does not tell, as those of Burn's optimizers.
///
/// ```
/// use backburn_optim::{AdamWConfig, StateFormat};
///
/// let optimizer = AdamWConfig::new().with_state_format(StateFormat::Bits8).init();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum StateFormat {
    /// In the float type in which it computes.
    Full,
    /// A code of 8 bits an element, and a scale in f32 for every 64: 1.0625 bytes.
    Bits8,
    /// A code of 4 bits an element, and a scale in f32 for every 64: 0.5625 bytes.
    Bits4,
}

told!(StateFormat, StateFormat::Full);

/// Parameters of fewer elements (norms, biases) keep full states: they cost nothing, and are sensitive.
pub(super) const MIN_ELEMENTS: usize = 4096;

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
        let elements = shape.num_elements();
        let words = Kept::Codes(coding).words(elements);
        Self::Packed(PackedState {
            codes: Tensor::zeros([words], (&device, DType::U32)),
            scales: Tensor::zeros([elements.div_ceil(GROUP)], (&device, DType::F32)),
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
        let mut scales = vec![0.0_f32; values.len().div_ceil(GROUP)];
        let words = Kept::Codes(coding).keep(values, cast_slice_mut(&mut scales));
        Self {
            codes: words_on(words, &device),
            scales: Tensor::from_data(&scales[..], (&device, DType::F32)),
            coding,
            shape,
        }
    }

    /// What the codes stand for, in f32.
    fn decoded(self) -> Tensor<D> {
        let device = self.scales.device();
        let mut words: Vec<u32> = self.codes.into_data().iter::<u32>().collect();
        let mut scales: Vec<f32> = self.scales.into_data().iter::<f32>().collect();
        let (kept, elements) = (Kept::Codes(self.coding), self.shape.num_elements());
        let values = kept.numbers(cast_slice_mut(&mut scales), &mut words, elements);
        let data = TensorData::new(values, self.shape);
        Tensor::from_data(data, (&device, DType::F32))
    }
}

/// Words in a tensor.
pub(super) fn words_on(words: Vec<u32>, device: &Device) -> Tensor<1, Int> {
    let length = words.len();
    Tensor::from_data(TensorData::new(words, [length]), (device, DType::U32))
}
