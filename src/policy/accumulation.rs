use backburn_base::AnyTensor;
use burn::tensor::{DType, FloatDType, Tensor};

/// The float type in which gradients are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accumulation {
    /// The type of the parameter, as in Burn's accumulator.
    #[default]
    AsParameter,
    /// f32 for half types.
    InFullPrecision,
}

impl Accumulation {
    /// Returns the sum that begins with `gradient`.
    pub(crate) fn begin<const D: usize>(self, gradient: Tensor<D>) -> Tensor<D> {
        match (self, gradient.dtype()) {
            (Self::InFullPrecision, DType::F16 | DType::BF16) => gradient.cast(FloatDType::F32),
            _ => gradient,
        }
    }
}

/// The sum of the gradients of some uses of a parameter.
#[derive(Debug)]
pub(crate) struct PartialSum {
    sum: AnyTensor,
    /// The type of each gradient, and of the result.
    dtype: DType,
}

impl PartialSum {
    pub(crate) fn of(gradient: AnyTensor) -> Self {
        let dtype = gradient.dtype();
        let sum = gradient;
        Self { sum, dtype }
    }

    pub(crate) fn with(self, gradient: AnyTensor, accumulation: Accumulation) -> Self {
        let sum = AnyTensor::from(accumulation.begin(self.sum.0));
        let sum = sum.added(gradient);
        Self { sum, ..self }
    }

    pub(crate) fn whole(self) -> AnyTensor {
        self.sum.in_type(self.dtype)
    }
}
