use burn::tensor::{DType, Tensor};

use super::low_bits::LowBits;
use super::root::Root;
use super::state::{MIN_ELEMENTS, StateFormat, StateTensor};
use super::weight::WeightFormat;
use crate::device::in_type;

/// The formats of an optimizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats {
    pub(crate) state: StateFormat,
    pub(crate) weight: WeightFormat,
}

/// The formats of one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fitted {
    state: StateFormat,
    pub(crate) weight: WeightFormat,
    /// Whether it is a small one that was left in f32 (a norm, a bias): it has all its bits.
    pub(crate) is_whole: bool,
    /// Whether parameter and states are kept as Burn keeps them. (Beside states in few bits, the full ones of small parameters
    /// in half types are in f32.)
    pub(crate) is_plain: bool,
}

/// A parameter with what its format keeps beside it.
#[derive(Clone, Debug)]
pub(crate) struct Weight<const D: usize> {
    pub(crate) value: Tensor<D>,
    pub(crate) format: WeightFormat,
    pub(crate) low_bits: Option<LowBits>,
}

impl Formats {
    /// Full states beside weights in this format.
    pub(crate) fn of_weights(weight: WeightFormat) -> Self {
        let state = StateFormat::Full;
        Self { state, weight }
    }

    /// Those of this parameter.
    pub(crate) fn fit<const D: usize>(self, parameter: &Tensor<D>) -> Fitted {
        let is_small = parameter.shape().num_elements() < MIN_ELEMENTS;
        let is_whole = is_small && parameter.dtype() == DType::F32;
        let weight = match is_whole {
            true => WeightFormat::Plain,
            false => self.weight,
        };
        let is_wide = matches!(parameter.dtype(), DType::F32 | DType::F64);
        let is_full = self.state == StateFormat::Full || is_small && is_wide;
        Fitted {
            state: self.state,
            weight,
            is_whole,
            is_plain: is_full && weight == WeightFormat::Plain,
        }
    }

    /// Why a state in this format can't take the gradients of micro-batches one by one.
    pub(crate) fn refusal(self) -> Option<&'static str> {
        let is_full = self.state == StateFormat::Full;
        (!is_full).then_some(
            "a state in few bits would be rounded with every micro-batch: use `StateFormat::Full`",
        )
    }
}

impl Fitted {
    /// A state of `parameter` as it is to be kept, `blank` if there is none yet; without a root it is full. Updates in formats
    /// are computed in f32, so full states are in that.
    pub(crate) fn state<const D: usize>(
        self,
        state: Option<StateTensor<D>>,
        root: Option<Root>,
        blank: impl FnOnce() -> f32,
        parameter: &Tensor<D>,
    ) -> StateTensor<D> {
        let (shape, device) = (parameter.shape(), parameter.device());
        let root = root.filter(|_| !self.is_plain);
        let coding = root.and_then(|root| self.state.coding(root, shape.num_elements()));
        let dtype = match self.is_plain {
            true => parameter.dtype(),
            false => DType::F32,
        };
        match (state, coding) {
            (Some(StateTensor::Full(state)), None) if state.dtype() == dtype => {
                StateTensor::Full(state)
            }
            // Burn loads it from a record in the type of its default device.
            (Some(state), None) => StateTensor::Full(in_type(state.full(), dtype)),
            (Some(state), coding) => state.conformed(coding),
            (None, Some(coding)) => StateTensor::blank(parameter, coding),
            (None, None) => StateTensor::Full(Tensor::full(shape, blank(), (&device, dtype))),
        }
    }

    /// `parameter` with what it lacks. Its low bits are those of a step that was not refused.
    pub(crate) fn weight<const D: usize>(
        self,
        parameter: Tensor<D>,
        low_bits: Option<LowBits>,
    ) -> Weight<D> {
        let format = self.weight;
        let (value, low_bits) = match low_bits {
            None if format == WeightFormat::Plain => (parameter, None),
            None => {
                let (elements, device) = (parameter.shape().num_elements(), parameter.device());
                let none = LowBits::none(format, elements, &device);
                (parameter, none)
            }
            Some(low_bits) if low_bits.format == format => (parameter, Some(low_bits)),
            // A weight that is not in bf16 lacks nothing.
            Some(_) if parameter.dtype() != DType::BF16 => (parameter, None),
            Some(low_bits) => {
                let (high, low_bits) = LowBits::split(low_bits.joined(parameter), format);
                (high, Some(low_bits))
            }
        };
        Weight {
            value,
            format,
            low_bits,
        }
    }
}

impl<const D: usize> Weight<D> {
    /// As it is.
    pub(crate) fn plain(value: Tensor<D>) -> Self {
        Self {
            value,
            format: WeightFormat::Plain,
            low_bits: None,
        }
    }

    /// The same for a kernel that takes low bits whose mark is another for those of other weights.
    #[cfg(feature = "cubecl")]
    pub(crate) fn into_split(self) -> Self {
        match self.low_bits {
            Some(low_bits) if low_bits.is_loaded => {
                let (value, low_bits) = low_bits.with_weights(self.value);
                Self {
                    value,
                    format: self.format,
                    low_bits: Some(low_bits),
                }
            }
            _ => self,
        }
    }
}
