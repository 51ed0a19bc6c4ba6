use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16};

use super::low_slice::LowSlice;
use super::root::GROUP;
use super::weight::WeightFormat;
use crate::device::sent;

/// What the weights of a parameter in bf16 lack of those that are trained.
///
/// With each group is a mark of the weights that it belongs to: what belongs to other weights (a record was loaded,
/// a module mapped) counts as nothing.
#[derive(Clone, Debug)]
pub(crate) struct LowBits {
    /// The low bits of all groups, each filled up, then the marks, in words of 32 bits: every device has that type.
    pub(crate) words: Tensor<1, Int>,
    pub(crate) format: WeightFormat,
    /// Of the parameter.
    pub(crate) elements: usize,
    /// Whether they are those of a record: the weights beside them may have gone through full precision since.
    // The kernels of devices need to know.
    #[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
    pub(crate) is_loaded: bool,
}

/// Half of the last of 24 bits, in the place of random ones.
const TO_THE_NEAREST: [u32; GROUP] = [0x80; GROUP];

impl LowBits {
    /// Those of a parameter of so many elements that lacks nothing, if the format has any.
    pub(crate) fn none(format: WeightFormat, elements: usize, device: &Device) -> Option<Self> {
        let words = || Tensor::zeros([words(format, elements)], (device, DType::U32));
        (format.low_bytes() > 0).then(|| Self {
            words: words(),
            format,
            elements,
            is_loaded: false,
        })
    }

    /// Those in a record, if they are as many as they should be.
    pub(crate) fn of_record(
        words: TensorData,
        format: WeightFormat,
        elements: usize,
        device: &Device,
    ) -> Option<Self> {
        // Each has a byte at least.
        let can_be = elements <= 4 * words.num_elements();
        let fits = can_be && words.num_elements() == self::words(format, elements);
        fits.then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            format,
            elements,
            is_loaded: true,
        })
    }

    /// The trained weights, in f32.
    pub(crate) fn joined<const D: usize>(self, high: Tensor<D>) -> Tensor<D> {
        let words = self.words.into_data().iter::<u32>().collect();
        Self::join(words, self.format, high)
    }

    /// The same from the words of the low bits.
    pub(crate) fn join<const D: usize>(
        words: Vec<u32>,
        format: WeightFormat,
        high: Tensor<D>,
    ) -> Tensor<D> {
        let device = high.device();
        let data = join(words, format, high.into_data());
        Tensor::from_data(data, (&device, DType::F32))
    }

    /// Whether `value`, which is not in bf16, is the weights in bf16 without these.
    pub(crate) fn are_missing_in<const D: usize>(&self, value: &Tensor<D>) -> bool {
        let (value, dtype) = (value.to_data(), value.dtype());
        let high = value.clone().convert::<bf16>();
        if high.clone().convert_dtype(dtype) != value {
            return false;
        }
        let words = self.words.to_data().iter::<u32>().collect();
        join(words, self.format, high).convert_dtype(dtype) != value
    }

    /// The weights to which these belong, with them: `high`, unless a cast has rounded some of them otherwise.
    #[cfg(feature = "cubecl")]
    pub(crate) fn with_weights<const D: usize>(self, high: Tensor<D>) -> (Tensor<D>, Self) {
        let device = high.device();
        let mut data = high.to_data();
        let weights = data.as_mut_slice::<bf16>();
        let weights = weights.expect("low bits are those of bf16");
        let mut words: Vec<u32> = self.words.to_data().iter::<u32>().collect();
        let low = LowSlice::of(&mut words, self.format, weights.len());
        let mut is_other = false;
        for (group, weights) in weights.chunks_mut(GROUP).enumerate() {
            if let Some(split) = low.as_split(group, weights) {
                weights.copy_from_slice(&split[..weights.len()]);
                is_other = true;
            }
        }
        let low_bits = Self {
            is_loaded: false,
            ..self
        };
        if is_other {
            (Tensor::from_data(data, (&device, DType::BF16)), low_bits)
        } else {
            (high, low_bits)
        }
    }

    /// Splits weights in f32 into those in bf16 and what these lack in `format`, rounded to the nearest.
    pub(crate) fn split<const D: usize>(
        value: Tensor<D>,
        format: WeightFormat,
    ) -> (Tensor<D>, Option<Self>) {
        let (shape, device) = (value.shape(), value.device());
        let values: Vec<f32> = value.into_data().iter::<f32>().collect();
        let mut words = vec![0_u32; words(format, values.len())];
        let mut high = vec![bf16::ZERO; values.len()];
        let mut low = LowSlice::of(&mut words, format, values.len());
        for (group, (values, high)) in values.chunks(GROUP).zip(high.chunks_mut(GROUP)).enumerate()
        {
            let mut filled = [0.0; GROUP];
            filled[..values.len()].copy_from_slice(values);
            low.store(group, high, &filled, &TO_THE_NEAREST);
        }
        let length = words.len();
        let high = Tensor::from_data(TensorData::new(high, shape), (&device, DType::BF16));
        let words = || Tensor::from_data(TensorData::new(words, [length]), (&device, DType::U32));
        let low = (format.low_bytes() > 0).then(|| Self {
            words: words(),
            format,
            elements: values.len(),
            is_loaded: false,
        });
        (high, low)
    }

    /// The same on another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        Self {
            words: sent(self.words, device),
            ..self
        }
    }
}

/// The trained weights, in f32, from those in bf16 and the words of the low bits.
fn join(mut words: Vec<u32>, format: WeightFormat, high: TensorData) -> TensorData {
    let weights = high.as_slice::<bf16>();
    let weights = weights.expect("low bits are those of bf16");
    let low = LowSlice::of(&mut words, format, weights.len());
    let mut values = Vec::with_capacity(weights.len());
    for (group, weights) in weights.chunks(GROUP).enumerate() {
        values.extend_from_slice(&low.load(group, weights)[..weights.len()]);
    }
    TensorData::new(values, high.shape().clone())
}

/// Words for so many elements.
fn words(format: WeightFormat, elements: usize) -> usize {
    match format.low_bytes() {
        0 => 0,
        bytes => {
            let groups = elements.div_ceil(GROUP);
            groups * GROUP * bytes / 4 + groups
        }
    }
}
