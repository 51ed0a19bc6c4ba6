use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16};

#[cfg(feature = "cubecl")]
use super::column::Column;
use super::column::Kept;
use super::state::words_on;
use super::weight::WeightFormat;
use backburn_base::{of_data, sent};

/// What the weights of a parameter in bf16 lack of those that are trained.
///
/// With each group is a mark of the weights that it belongs to: what belongs to other weights (a record was loaded,
/// a module mapped) counts as nothing.
#[derive(Clone, Debug)]
pub struct LowBits {
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

impl LowBits {
    /// Those of a parameter that lacks nothing, if the format has any.
    pub(crate) fn none<const D: usize>(format: WeightFormat, of: &Tensor<D>) -> Option<Self> {
        let elements = of.shape().num_elements();
        let words = Kept::Weights(format).words(elements);
        (format.low_bytes() > 0).then(|| Self {
            words: Tensor::zeros([words], (&of.device(), DType::U32)),
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
        let fits = can_be && words.num_elements() == Kept::Weights(format).words(elements);
        fits.then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            format,
            elements,
            is_loaded: true,
        })
    }

    /// The trained weights, in f32.
    pub fn joined<const D: usize>(self, high: Tensor<D>) -> Tensor<D> {
        let device = high.device();
        of_data(self.join(high.into_data()), &device)
    }

    /// The same in memory.
    fn join(&self, high: TensorData) -> TensorData {
        assert_eq!(high.dtype(), DType::BF16, "low bits are those of bf16");
        let (mut weights, shape, _) = high.into_parts();
        let kept = Kept::Weights(self.format);
        let values = kept.numbers(&mut weights, &mut self.read(), shape.num_elements());
        TensorData::new(values, shape)
    }

    /// Whether `value`, which is not in bf16, is the weights in bf16 without these.
    pub(crate) fn are_missing_in<const D: usize>(&self, value: &Tensor<D>) -> bool {
        let (value, dtype) = (value.to_data(), value.dtype());
        let high = value.clone().convert::<bf16>();
        if high.clone().convert_dtype(dtype) != value {
            return false;
        }
        self.join(high).convert_dtype(dtype) != value
    }

    /// The weights to which these belong, with them: `high`, unless a cast has rounded some of them otherwise.
    #[cfg(feature = "cubecl")]
    pub(crate) fn with_weights<const D: usize>(self, high: Tensor<D>) -> (Tensor<D>, Self) {
        let (device, mut words) = (high.device(), self.read());
        let (mut weights, shape, dtype) = high.to_data().into_parts();
        let column = Column::new(Kept::Weights(self.format), &mut weights, &mut words);
        let high = if column.mend() {
            of_data(TensorData::from_bytes(weights, shape, dtype), &device)
        } else {
            high
        };
        let low_bits = Self {
            is_loaded: false,
            ..self
        };
        (high, low_bits)
    }

    /// Splits weights in f32 into those in bf16 and what these lack in `format`, rounded to the nearest.
    pub(crate) fn split<const D: usize>(
        value: Tensor<D>,
        format: WeightFormat,
    ) -> (Tensor<D>, Self) {
        let (shape, device) = (value.shape(), value.device());
        let values: Vec<f32> = value.into_data().iter::<f32>().collect();
        let elements = values.len();
        let mut high = vec![bf16::ZERO; elements];
        let words = Kept::Weights(format).keep(values, bytemuck::cast_slice_mut(&mut high));
        let low = Self {
            words: words_on(words, &device),
            format,
            elements,
            is_loaded: false,
        };
        let high = TensorData::new(high, shape);
        (Tensor::from_data(high, (&device, DType::BF16)), low)
    }

    fn read(&self) -> Vec<u32> {
        self.words.to_data().iter::<u32>().collect()
    }

    /// The same on another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        Self {
            words: sent(self.words, device),
            ..self
        }
    }
}
