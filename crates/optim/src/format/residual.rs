use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16};

use super::element_buffer::ElementEncoding;
use super::weight::WeightFormat;
use backburn_base::{of_data, to_device};

/// Encoding of weights with a residual.
const ENCODING: ElementEncoding = ElementEncoding::Weights(WeightFormat::Split24);

/// The difference between the trained weights of a parameter and its weights in bf16.
///
/// Each group has a checksum of its weights. The residual of other weights (after loading a record or mapping a module) counts
/// as zero.
#[derive(Clone, Debug)]
pub struct Residual {
    /// Residuals of all groups, padded, then the checksums, in 32-bit words, which every device supports.
    pub(crate) words: Tensor<1, Int>,
    /// Number of elements of the parameter.
    pub(crate) elements: usize,
}

impl Residual {
    /// Creates a residual of zeros.
    pub(crate) fn none<const D: usize>(of: &Tensor<D>) -> Self {
        let elements = of.shape().num_elements();
        let words = ENCODING.words(elements);
        Self {
            words: Tensor::zeros([words], (&of.device(), DType::U32)),
            elements,
        }
    }

    /// Loads a residual from a record, if its length matches.
    pub(crate) fn of_record(words: TensorData, elements: usize, device: &Device) -> Option<Self> {
        // Each element has at least one byte.
        let can_be = elements <= 4 * words.num_elements();
        let fits = can_be && words.num_elements() == ENCODING.words(elements);
        fits.then(|| Self {
            words: Tensor::from_data(words, (device, DType::U32)),
            elements,
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
        let mut words: Vec<u32> = self.words.to_data().iter::<u32>().collect();
        let values = ENCODING.decode(&mut weights, &mut words, shape.num_elements());
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

    /// Moves the residual to another device.
    pub(crate) fn on_device(self, device: &Device) -> Self {
        Self {
            words: to_device(self.words, device),
            ..self
        }
    }
}
