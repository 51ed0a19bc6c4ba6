//! Optimizer states in formats, in records.

use std::cell::Cell;

use burn::optim::{StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burn_pack::Scalar;

use super::low_bits::LowBits;
use super::root::{Coding, GROUP, Root, Width};
use super::state::{PackedState, StateTensor};
use super::weight::WeightFormat;

/// What stock Burn does not know, under this name in a state.
const FORMAT: &str = "format";
const STATE_BITS: &str = "state_bits";
const TIME: &str = "time";
const WRAPS: &str = "wraps";
const LOW_BITS: &str = "low_bits";
const WEIGHT_BITS: &str = "weight_bits";
const ELEMENTS: &str = "elements";
/// What an optimizer around another keeps is under this name.
const AROUND: &str = "around";

thread_local! {
    static COMPACT: Cell<bool> = const { Cell::new(false) };
}

/// Lets `save` write the records of optimizer states as they are kept, in codes, instead of in f32.
///
/// Stock Burn can't read such a record, and starts the states anew without a word; [`backburn::optim`](crate::optim) resumes
/// from both to the bit.
///
/// ```
/// # use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
/// use backburn::optim::{AdamWConfig, StateFormat, compact_records};
///
/// # let device = Device::flex().autodiff();
/// # let model = LinearConfig::new(64, 64).init(&device);
/// let mut optimizer = AdamWConfig::new().with_state_format(StateFormat::Bits8).init();
/// # let gradients = model.forward(Tensor::<2>::ones([1, 64], &device)).mean().backward();
/// # let gradients = GradientsParams::from_grads(gradients, &model);
/// # optimizer.step(1e-3, model, gradients);
/// let record = compact_records(|| optimizer.to_record());
/// # let compact = record.into_bytes().unwrap().len();
/// # assert!(compact < optimizer.to_record().into_bytes().unwrap().len() / 3);
/// ```
pub fn compact_records<R>(save: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            COMPACT.set(self.0);
        }
    }
    let _before = Before(COMPACT.replace(true));
    save()
}

/// Whether the records that are written now are to be compact.
pub(crate) fn records_are_compact() -> bool {
    COMPACT.get()
}

/// What this version can't read.
pub(crate) struct Unreadable;

/// Where the state of an optimizer around another is, whose own has this prefix.
pub(crate) fn around(prefix: &str) -> String {
    format!("{prefix}.{AROUND}")
}

/// A name in a state without the mark of an optimizer around another.
fn inner(name: &str) -> &str {
    let rest = name.strip_prefix(AROUND);
    rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or(name)
}

/// Whether stock Burn does without what has this name in a state, and loses nothing.
pub(crate) fn stock_can_ignore(name: &str) -> bool {
    let name = inner(name);
    [STATE_BITS, TIME, WRAPS]
        .iter()
        .any(|hint| name == format!("{FORMAT}.{hint}"))
}

/// Whether this is the name of something in codes.
pub(crate) fn is_compact(name: &str) -> bool {
    name.ends_with(".codes")
}

/// What the scalar of this name in a state must be for a parameter of `shape`, if it tells about that.
pub(crate) fn expected(name: &str, shape: &Shape) -> Option<usize> {
    if inner(name) == format!("{FORMAT}.{ELEMENTS}") {
        return Some(shape.num_elements());
    }
    let (_, dim) = name.rsplit_once(".dim_")?;
    shape.get(dim.parse::<usize>().ok()?).copied()
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

impl<const D: usize> StateTensor<D> {
    /// Writes the state as `{prefix}.{leaf}`.
    pub(crate) fn flatten(&self, prefix: &str, leaf: &str, sink: &mut StateSink) {
        match self {
            Self::Packed(packed) if COMPACT.get() => {
                packed.flatten(&format!("{prefix}.{leaf}"), sink);
            }
            state => sink.push_tensor(prefix, leaf, state.clone().full().into_data()),
        }
    }

    /// Reads what [`flatten`](Self::flatten) has written: in codes again, if it was, and where the `format` of the
    /// record says so.
    pub(crate) fn unflatten(
        prefix: &str,
        leaf: &str,
        root: Root,
        format: &RecordedFormat,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let coding = format.width.map(|width| Coding { root, width });
        match Self::unflatten_full(prefix, leaf, source, device) {
            Some(state) => Some(state.conformed(coding)),
            None => {
                let prefix = format!("{prefix}.{leaf}");
                PackedState::unflatten(&prefix, coding?, source, device).map(Self::Packed)
            }
        }
    }

    /// Reads one that was written in full, and keeps it so.
    pub(crate) fn unflatten_full(
        prefix: &str,
        leaf: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let data = source.take_tensor(prefix, leaf)?;
        loaded(data, device).map(Self::Full)
    }
}

impl<const D: usize> PackedState<D> {
    fn flatten(&self, prefix: &str, sink: &mut StateSink) {
        sink.push_tensor(
            prefix,
            "codes",
            unlike_a_parameter::<D>(self.codes.to_data()),
        );
        sink.push_tensor(
            prefix,
            "scales",
            unlike_a_parameter::<D>(self.scales.to_data()),
        );
        for (dim, size) in self.shape.iter().enumerate() {
            sink.push_scalar(prefix, &format!("dim_{dim}"), (*size).into());
        }
    }

    fn unflatten(
        prefix: &str,
        coding: Coding,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<Self> {
        let dims = (0..D).map(|dim| scalar(source, prefix, &format!("dim_{dim}")));
        let dims = dims.collect::<Option<Vec<usize>>>()?;
        let elements = dims
            .iter()
            .try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
        let codes = flat(source.take_tensor(prefix, "codes")?, DType::U32)?;
        let scales = flat(source.take_tensor(prefix, "scales")?, DType::F32)?;
        let groups = elements.div_ceil(GROUP);
        let per_group = coding.width.group_bytes() / 4;
        let fits = scales.num_elements() == groups && codes.num_elements() == groups * per_group;
        fits.then(|| Self {
            codes: Tensor::from_data(codes, (device, DType::U32)),
            scales: Tensor::from_data(scales, (device, DType::F32)),
            coding,
            shape: Shape::from(dims),
        })
    }
}

/// What a record says of the formats that it was written from.
#[derive(Default)]
pub(crate) struct RecordedFormat {
    width: Option<Width>,
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

/// The format of the weights to which the low bits of this name belong, if it is a name of some: `scalar` looks up the
/// number beside it.
pub(crate) fn low_bits_named(
    name: &str,
    scalar: impl FnOnce(&str) -> Option<usize>,
) -> Option<WeightFormat> {
    let prefix = name.strip_suffix(&format!("{FORMAT}.{LOW_BITS}"))?;
    split_of(scalar(&format!("{prefix}{FORMAT}.{WEIGHT_BITS}"))?)
}

fn scalar(source: &mut StateSource, prefix: &str, leaf: &str) -> Option<usize> {
    source.take_scalar(prefix, leaf)?.try_into().ok()
}

/// `data` in one dimension more than a parameter, so that nobody takes it for a state of its shape.
fn unlike_a_parameter<const D: usize>(data: TensorData) -> TensorData {
    let mut shape = vec![1; D + 1];
    shape[0] = data.num_elements();
    reshaped(data, shape)
}

/// `data` in a row, if it is of this type.
fn flat(data: TensorData, dtype: DType) -> Option<TensorData> {
    let elements = data.num_elements();
    (data.dtype() == dtype).then(|| reshaped(data, vec![elements]))
}

fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, Shape::from(shape), dtype)
}
