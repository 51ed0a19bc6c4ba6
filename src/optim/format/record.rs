//! Optimizer states in formats, in records.

use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burn_pack::Scalar;

use super::low_bits::LowBits;
use super::root::Width;
use super::state::StateTensor;
use super::weight::WeightFormat;
use crate::optimizer_record::{
    AROUND, ELEMENTS, FORMAT, LOW_BITS, RecordedState, STATE_BITS, TIME, WEIGHT_BITS, WRAPS,
};

/// What this version can't read.
pub(crate) struct Unreadable;

/// Where the state of an optimizer around another is, whose own has this prefix.
pub(crate) fn around(prefix: &str) -> String {
    format!("{prefix}.{AROUND}")
}

/// A state in the type of its record, if it is one of this rank: Burn would take it to the default type of the device.
pub(crate) fn loaded<const D: usize>(data: TensorData, device: &Device) -> Option<Tensor<D>> {
    match data.dtype() {
        dtype if !dtype.is_float() || data.rank() != D => None,
        DType::F32 => Some(Tensor::from_data(data, (device, DType::F32))),
        _ => Some(Tensor::from_data(data, device)),
    }
}

/// The number of steps that a scalar tells, if it can be one.
pub(crate) fn steps(scalar: Scalar) -> Option<usize> {
    let steps = i32::try_from(scalar).ok()?;
    steps.checked_add(1)?;
    steps.try_into().ok()
}

impl Width {
    fn of_bits(bits: usize) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }
}

/// What a record says of the formats that it was written from.
#[derive(Default)]
pub(crate) struct RecordedFormat {
    pub(super) width: Option<Width>,
    /// The number of steps, where the optimizer's own state has none.
    pub(crate) time: usize,
    /// Whether there is the state of another optimizer.
    pub(crate) wraps: bool,
}

impl RecordedFormat {
    /// That of `states`.
    pub(crate) fn of<'a, const D: usize>(
        states: impl IntoIterator<Item = &'a StateTensor<D>>,
        time: usize,
    ) -> Self {
        let packed = states.into_iter().find_map(|state| match state {
            StateTensor::Full(_) => None,
            StateTensor::Packed(packed) => Some(packed.coding.width),
        });
        Self {
            width: packed,
            time,
            wraps: false,
        }
    }

    pub(crate) fn wrapping(self, wraps: bool) -> Self {
        Self { wraps, ..self }
    }

    pub(crate) fn flatten(&self, prefix: &str, sink: &mut StateSink) {
        let prefix = format!("{prefix}.{FORMAT}");
        if let Some(width) = self.width {
            sink.push_scalar(&prefix, STATE_BITS, width.bits().into());
        }
        if self.wraps {
            sink.push_scalar(&prefix, WRAPS, true.into());
        }
        if self.time > 0 {
            sink.push_scalar(&prefix, TIME, self.time.into());
        }
    }

    /// What the record says, if this version knows it.
    pub(crate) fn unflatten(prefix: &str, source: &mut StateSource) -> Option<Self> {
        let prefix = format!("{prefix}.{FORMAT}");
        let width = match scalar(source, &prefix, STATE_BITS) {
            Some(bits) => Some(Width::of_bits(bits)?),
            None => None,
        };
        let time = match source.take_scalar(&prefix, TIME) {
            Some(time) => steps(time)?,
            None => 0,
        };
        let wraps = source.take_scalar(&prefix, WRAPS).is_some();
        Some(Self { width, time, wraps })
    }
}

impl LowBits {
    pub(crate) fn flatten<const D: usize>(&self, prefix: &str, sink: &mut StateSink) {
        let prefix = format!("{prefix}.{FORMAT}");
        let bits = 16 + 8 * self.format.low_bytes();
        sink.push_scalar(&prefix, WEIGHT_BITS, bits.into());
        sink.push_scalar(&prefix, ELEMENTS, self.elements.into());
        sink.push_tensor(
            &prefix,
            LOW_BITS,
            unlike_a_parameter::<D>(self.words.to_data()),
        );
    }

    /// Those in a record, if there are some: an error if they can't be read.
    pub(crate) fn unflatten(
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Result<Option<Self>, Unreadable> {
        let prefix = format!("{prefix}.{FORMAT}");
        let Some(bits) = scalar(source, &prefix, WEIGHT_BITS) else {
            return Ok(None);
        };
        let read = || {
            let format = split_of(bits)?;
            let elements = scalar(source, &prefix, ELEMENTS)?;
            let words = flat(source.take_tensor(&prefix, LOW_BITS)?, DType::U32)?;
            Self::of_record(words, format, elements, device)
        };
        match { read }() {
            Some(low_bits) => Ok(Some(low_bits)),
            None => Err(Unreadable),
        }
    }
}

/// The format of weights of so many bits in all.
fn split_of(bits: usize) -> Option<WeightFormat> {
    match bits {
        24 => Some(WeightFormat::Split24),
        32 => Some(WeightFormat::Split32),
        _ => None,
    }
}

/// The words of the low bits in a recorded state, if it has any, with the format of the weights that lack them.
pub(crate) fn recorded_low_bits(state: &RecordedState) -> Option<(WeightFormat, Vec<u32>)> {
    let name = format!("{FORMAT}.{LOW_BITS}");
    state.tensors.iter().find_map(|tensor| {
        let prefix = tensor.name.strip_suffix(&name)?;
        let bits = state
            .scalars
            .get(&format!("{prefix}{FORMAT}.{WEIGHT_BITS}"))?;
        let format = split_of((*bits).try_into().ok()?)?;
        let bytes = tensor.to_bytes().expect("Burn reads its own record");
        let data = TensorData::from_bytes(bytes, tensor.shape.clone(), tensor.dtype);
        Some((format, data.iter::<u32>().collect()))
    })
}

pub(super) fn scalar(source: &mut StateSource, prefix: &str, leaf: &str) -> Option<usize> {
    source.take_scalar(prefix, leaf)?.try_into().ok()
}

/// `data` in one dimension more than a parameter, so that nobody takes it for a state of its shape.
pub(super) fn unlike_a_parameter<const D: usize>(data: TensorData) -> TensorData {
    let mut shape = vec![1; D + 1];
    shape[0] = data.num_elements();
    reshaped(data, shape)
}

/// `data` in a row, if it is of this type.
pub(super) fn flat(data: TensorData, dtype: DType) -> Option<TensorData> {
    let elements = data.num_elements();
    (data.dtype() == dtype).then(|| reshaped(data, vec![elements]))
}

fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, Shape::from(shape), dtype)
}
