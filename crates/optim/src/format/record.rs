//! Optimizer states in formats, in records.

use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burn_pack::Scalar;

use super::super::call;
use super::element_buffer::ElementEncoding;
use super::residual::Residual;
use super::square_root_code::{CodeScheme, GROUP, Width};
use super::state::{PackedState, StateTensor};
use crate::optimizer_record::{
    AROUND, ELEMENTS, FORMAT, LOW_BITS, RecordedState, STATE_BITS, TIME, WEIGHT_BITS, WRAPS,
    in_own_memory, push_tensor, records_are_compact,
};

/// Bits of a weight in bf16 and its residual.
const SPLIT: usize = 24;

/// Returns the prefix of a wrapping optimizer's state, for the `prefix` of the wrapped one.
pub(crate) fn around(prefix: &str) -> String {
    format!("{prefix}.{AROUND}")
}

/// Loads a state, if its number of dimensions matches: in f32 if it was recorded so, otherwise in the default type of the device.
pub(crate) fn loaded<const D: usize>(data: TensorData, device: &Device) -> Option<Tensor<D>> {
    match data.dtype() {
        dtype if !dtype.is_float() || data.rank() != D => None,
        DType::F32 => Some(Tensor::from_data(in_own_memory(data), (device, DType::F32))),
        _ => Some(Tensor::from_data(in_own_memory(data), device)),
    }
}

/// Returns the number of steps in a scalar, if it is a valid one.
pub(crate) fn steps(scalar: Scalar) -> Option<usize> {
    let steps = i32::try_from(scalar).ok()?;
    steps.checked_add(1)?;
    steps.try_into().ok()
}

/// The part of a record that describes its formats.
#[derive(Default)]
pub(crate) struct RecordedFormat {
    pub(crate) width: Option<Width>,
    /// Number of steps, if the optimizer's own state has none.
    pub(crate) time: usize,
    /// `true` if the record has the state of a wrapped optimizer.
    pub(crate) wraps: bool,
    /// Residual of the weight in bf16.
    pub(crate) residual: Option<Residual>,
}

impl RecordedFormat {
    /// Writes the formats of a parameter with this number of dimensions.
    pub(crate) fn flatten(self, prefix: &str, dims: usize, sink: &mut StateSink) {
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
        if let Some(low) = self.residual {
            sink.push_scalar(&prefix, WEIGHT_BITS, SPLIT.into());
            sink.push_scalar(&prefix, ELEMENTS, low.elements.into());
            let (dtype, shape) = (low.words.dtype(), low.words.shape());
            let read = move || low.words.to_data();
            push_flat(sink, (&prefix, LOW_BITS), dims, (dtype, shape), read);
        }
    }

    /// Reads the formats, if this version supports them.
    pub(crate) fn unflatten(
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        call::with(|call| call.may_have_formats = true);
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
        let residual = match scalar(source, &prefix, WEIGHT_BITS) {
            Some(SPLIT) => {
                let elements = scalar(source, &prefix, ELEMENTS)?;
                let words = flat(source.take_tensor(&prefix, LOW_BITS)?, DType::U32)?;
                Some(Residual::of_record(words, elements, device)?)
            }
            Some(_) => return None,
            None => None,
        };
        Some(Self {
            width,
            time,
            wraps,
            residual,
        })
    }
}

impl<const D: usize> StateTensor<D> {
    /// Writes the state as `{prefix}.{leaf}`.
    pub(crate) fn flatten(&self, prefix: &str, leaf: &str, sink: &mut StateSink) {
        match self {
            Self::Packed(packed) if records_are_compact() => {
                packed.flatten(&format!("{prefix}.{leaf}"), sink);
            }
            Self::Full(state) => {
                let tensor = state.clone();
                let read = move || tensor.to_data();
                push_tensor(sink, (prefix, leaf), (state.dtype(), state.shape()), read);
            }
            Self::Packed(packed) => {
                let kind = (DType::F32, packed.shape.clone());
                let state = self.clone();
                let read = move || state.clone().full().into_data();
                push_tensor(sink, (prefix, leaf), kind, read);
            }
        }
    }
}

impl<const D: usize> PackedState<D> {
    fn flatten(&self, prefix: &str, sink: &mut StateSink) {
        let (codes, scales) = (self.codes.clone(), self.scales.clone());
        let kind = (codes.dtype(), codes.shape());
        push_flat(sink, (prefix, "codes"), D, kind, move || codes.to_data());
        let kind = (scales.dtype(), scales.shape());
        push_flat(sink, (prefix, "scales"), D, kind, move || scales.to_data());
        for (dim, size) in self.shape.iter().enumerate() {
            sink.push_scalar(prefix, &format!("dim_{dim}"), (*size).into());
        }
    }

    /// Reads a state from a compact record.
    pub(crate) fn unflatten(
        prefix: &str,
        scheme: CodeScheme,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let dims = (0..D).map(|dim| scalar(source, prefix, &format!("dim_{dim}")));
        let dims = dims.collect::<Option<Vec<usize>>>()?;
        let mut sizes = dims.iter();
        let elements = sizes.try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
        let codes = flat(source.take_tensor(prefix, "codes")?, DType::U32)?;
        let scales = flat(source.take_tensor(prefix, "scales")?, DType::F32)?;
        let words = ElementEncoding::Codes(scheme).words(elements);
        let fits =
            scales.num_elements() == elements.div_ceil(GROUP) && codes.num_elements() == words;
        fits.then(|| Self {
            codes: Tensor::from_data(codes, (device, DType::U32)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
            scheme,
            shape: Shape::from(dims),
        })
    }
}

/// Returns the residual of the weight (its low bits) that the state contains, on `device`; `None` if it has none.
pub fn recorded_residual(state: &RecordedState, device: &Device) -> Option<Residual> {
    let name = format!("{FORMAT}.{LOW_BITS}");
    state.tensors.iter().find_map(|tensor| {
        let prefix = tensor.name.strip_suffix(&name)?;
        let elements = *state.scalars.get(&format!("{prefix}{FORMAT}.{ELEMENTS}"))?;
        let bytes = tensor.to_bytes().expect("Burn reads its own record");
        let words = TensorData::from_bytes(bytes, tensor.shape.clone(), tensor.dtype);
        let words = flat(words, DType::U32)?;
        Residual::of_record(words, elements.try_into().ok()?, device)
    })
}

fn scalar(source: &mut StateSource, prefix: &str, leaf: &str) -> Option<usize> {
    source.take_scalar(prefix, leaf)?.try_into().ok()
}

/// Adds the flat tensor that `read` returns to `sink`, with one dimension more than the `dims` of the parameter, so that no reader
/// takes it for a state of the parameter's shape.
fn push_flat(
    sink: &mut StateSink,
    name: (&str, &str),
    dims: usize,
    (dtype, flat): (DType, Shape),
    read: impl Fn() -> TensorData + Send + Sync + 'static,
) {
    let mut shape = vec![1; dims + 1];
    shape[0] = flat.num_elements();
    let kind = (dtype, Shape::from(shape.clone()));
    push_tensor(sink, name, kind, move || reshaped(read(), shape.clone()));
}

/// Flattens `data`, if it is of this type.
fn flat(data: TensorData, dtype: DType) -> Option<TensorData> {
    let elements = data.num_elements();
    (data.dtype() == dtype).then(|| reshaped(in_own_memory(data), vec![elements]))
}

fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, Shape::from(shape), dtype)
}
