use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16};

#[cfg(feature = "cubecl")]
use super::element_buffer::ElementBuffer;
use super::element_buffer::ElementEncoding;
use super::state::words_on;
use super::weight::WeightFormat;
use backburn_base::{of_data, sent};

/// The difference between the trained weights of a parameter and its weights in bf16.
///
/// Each group has a checksum of its weights. The residual of other weights (after loading a record or mapping a module) counts
/// as zero.
#[derive(Clone, Debug)]
pub struct Residual {
    /// Residuals of all groups, padded, then the checksums, in 32-bit words, which every device supports.
    pub(crate) words: Tensor<1, Int>,
    pub(crate) format: WeightFormat,
    /// Number of elements of the parameter.
    pub(crate) elements: usize,
    /// `true` if it was loaded from a record: its weights may have been in full precision since.
    // Used only by the kernels of devices.
    #[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
    pub(crate) is_loaded: bool,
}

impl Residual {
    /// Creates a residual of zeros, if the format has one.
    pub(crate) fn none<const D: usize>(format: WeightFormat, of: &Tensor<D>) -> Option<Self> {
        let elements = of.shape().num_elements();
        let words = ElementEncoding::Weights(format).words(elements);
        (format.residual_bytes() > 0).then(|| Self {
            words: Tensor::zeros([words], (&of.device(), DType::U32)),
            format,
            elements,
            is_loaded: false,
        })
    }

    /// Loads a residual from a record, if its length matches.
    pub(crate) fn of_record(
        words: TensorData,
        format: WeightFormat,
        elements: usize,
        device: &Device,
    ) -> Option<Self> {
        // Each element has at least one byte.
        let can_be = elements <= 4 * words.num_elements();
        let fits =
            can_be && words.num_elements() == ElementEncoding::Weights(format).words(elements);
        fits.then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            format,
            elements,
            is_loaded: true,
        })
    }

    /// Returns the trained weights in f32.
    pub fn joined<const D: usize>(self, high: Tensor<D>) -> Tensor<D> {
        let device = high.device();
        of_data(self.join(high.into_data()), &device)
    }

    /// Joins the weights in memory.
    fn join(&self, high: TensorData) -> TensorData {
        assert_eq!(high.dtype(), DType::BF16, "low bits are those of bf16");
        let (mut weights, shape, _) = high.into_parts();
        let encoding = ElementEncoding::Weights(self.format);
        let values = encoding.numbers(&mut weights, &mut self.read(), shape.num_elements());
        TensorData::new(values, shape)
    }

    /// Returns `true` if `value`, which is not in bf16, holds the weights in bf16 without this residual.
    pub(crate) fn are_missing_in<const D: usize>(&self, value: &Tensor<D>) -> bool {
        let (value, dtype) = (value.to_data(), value.dtype());
        let high = value.clone().convert::<bf16>();
        if high.clone().convert_dtype(dtype) != value {
            return false;
        }
        self.join(high).convert_dtype(dtype) != value
    }

    /// Returns the weights that match this residual, and the residual: `high`, unless a cast has rounded some of them
    /// differently.
    #[cfg(feature = "cubecl")]
    pub(crate) fn with_weights<const D: usize>(self, high: Tensor<D>) -> (Tensor<D>, Self) {
        let (device, mut words) = (high.device(), self.read());
        let (mut weights, shape, dtype) = high.to_data().into_parts();
        let buffer = ElementBuffer::new(
            ElementEncoding::Weights(self.format),
            &mut weights,
            &mut words,
        );
        let high = if buffer.mend() {
            of_data(TensorData::from_bytes(weights, shape, dtype), &device)
        } else {
            high
        };
        let residual = Self {
            is_loaded: false,
            ..self
        };
        (high, residual)
    }

    /// Splits weights in f32 into weights in bf16 and their residual in `format`, rounded to the nearest.
    pub(crate) fn split<const D: usize>(
        value: Tensor<D>,
        format: WeightFormat,
    ) -> (Tensor<D>, Self) {
        let (shape, device) = (value.shape(), value.device());
        let values: Vec<f32> = value.into_data().iter::<f32>().collect();
        let elements = values.len();
        let mut high = vec![bf16::ZERO; elements];
        let words =
            ElementEncoding::Weights(format).keep(values, bytemuck::cast_slice_mut(&mut high));
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

    /// Moves the residual to another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        Self {
            words: sent(self.words, device),
            ..self
        }
    }
}
