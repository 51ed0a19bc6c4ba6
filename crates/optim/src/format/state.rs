use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use bytemuck::cast_slice_mut;
use serde::{Deserialize, Serialize};

use super::config_enum::config_enum;
use super::element_buffer::ElementEncoding;
use super::square_root_code::{CodeScheme, GROUP, SquareRootCode, Width};
use backburn_base::to_device;

/// Format of the states of an optimizer.
///
/// A config without this option has [`Full`](Self::Full), as the configs of Burn's optimizers. Parameters of fewer than 4096
/// elements always have `Full` states.
///
/// ```
/// use backburn_optim::{AdamWConfig, StateFormat};
///
/// let optimizer = AdamWConfig::new().with_state_format(StateFormat::Bits8).init();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum StateFormat {
    /// f32, or f64 for a parameter in f64. A parameter in f16 or bf16 with [`WeightFormat::Plain`](super::WeightFormat::Plain) has
    /// states in its own type.
    Full,
    /// A code of 8 bits for each element, and a scale in f32 for every 64: 1.0625 bytes for each element.
    Bits8,
    /// A code of 4 bits for each element, and a scale in f32 for every 64: 0.5625 bytes for each element.
    Bits4,
}

config_enum!(StateFormat, StateFormat::Full);

/// Parameters of fewer elements (norms, biases) keep full states: these are small, and rounding would harm them.
pub(super) const MIN_ELEMENTS: usize = 4096;

impl StateFormat {
    /// Returns the scheme for the states of a parameter with `elements` elements; `None` if they are full.
    pub(crate) fn scheme(self, root: SquareRootCode, elements: usize) -> Option<CodeScheme> {
        let width = match self {
            _ if elements < MIN_ELEMENTS => return None,
            Self::Full => return None,
            Self::Bits8 => Width::Eight,
            Self::Bits4 => Width::Four,
        };
        Some(CodeScheme { root, width })
    }
}

/// An optimizer state of the shape of its parameter.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Each parameter has one.
pub(crate) enum StateTensor<const D: usize> {
    /// Floats.
    Full(Tensor<D>),
    /// Quantized values.
    Packed(PackedState<D>),
}

/// A quantized optimizer state.
#[derive(Clone, Debug)]
pub(crate) struct PackedState<const D: usize> {
    /// Codes of all groups, padded, in 32-bit words, which every device supports.
    pub(crate) codes: Tensor<1, Int>,
    /// Scale of each group.
    pub(crate) scales: Tensor<1>,
    pub(crate) scheme: CodeScheme,
    pub(crate) shape: Shape,
}

impl<const D: usize> StateTensor<D> {
    /// Creates the state of a parameter before the first step.
    pub(crate) fn blank(parameter: &Tensor<D>, scheme: CodeScheme) -> Self {
        let (shape, device) = (parameter.shape(), parameter.device());
        let elements = shape.num_elements();
        let words = ElementEncoding::Codes(scheme).words(elements);
        Self::Packed(PackedState {
            codes: Tensor::zeros([words], (&device, DType::U32)),
            scales: Tensor::zeros([elements.div_ceil(GROUP)], (&device, DType::F32)),
            scheme,
            shape,
        })
    }

    /// Returns the state in full precision; a quantized one is decoded to f32.
    pub(crate) fn full(self) -> Tensor<D> {
        match self {
            Self::Full(state) => state,
            Self::Packed(packed) => packed.decoded(),
        }
    }

    /// Converts the state to this scheme, or to full precision.
    pub(crate) fn conformed(self, scheme: Option<CodeScheme>) -> Self {
        match (self, scheme) {
            (Self::Packed(packed), Some(scheme)) if packed.scheme == scheme => Self::Packed(packed),
            (state, Some(scheme)) => Self::Packed(PackedState::encoded(state.full(), scheme)),
            (state, None) => Self::Full(state.full()),
        }
    }

    /// Moves the state to another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        match self {
            Self::Full(state) => Self::Full(to_device(state, device)),
            Self::Packed(packed) => Self::Packed(PackedState {
                codes: to_device(packed.codes, device),
                scales: to_device(packed.scales, device),
                ..packed
            }),
        }
    }
}

impl<const D: usize> PackedState<D> {
    /// Encodes `state`, rounded to the nearest: a decoded state gets the same codes again.
    pub(crate) fn encoded(state: Tensor<D>, scheme: CodeScheme) -> Self {
        let (shape, device) = (state.shape(), state.device());
        let values: Vec<f32> = state.into_data().iter::<f32>().collect();
        let mut scales = vec![0.0_f32; values.len().div_ceil(GROUP)];
        let words = ElementEncoding::Codes(scheme).encode(values, cast_slice_mut(&mut scales));
        let length = words.len();
        let words = TensorData::new(words, [length]);
        Self {
            codes: Tensor::from_data(words, (&device, DType::U32)),
            scales: Tensor::from_data(&scales[..], (&device, DType::F32)),
            scheme,
            shape,
        }
    }

    /// Decodes the state to f32.
    fn decoded(self) -> Tensor<D> {
        let device = self.scales.device();
        let mut words: Vec<u32> = self.codes.into_data().iter::<u32>().collect();
        let mut scales: Vec<f32> = self.scales.into_data().iter::<f32>().collect();
        let (encoding, elements) = (
            ElementEncoding::Codes(self.scheme),
            self.shape.num_elements(),
        );
        let values = encoding.decode(cast_slice_mut(&mut scales), &mut words, elements);
        let data = TensorData::new(values, self.shape);
        Tensor::from_data(data, (&device, DType::F32))
    }
}
