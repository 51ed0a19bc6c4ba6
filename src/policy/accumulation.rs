use burn::tensor::{DType, FloatDType, Tensor};

use crate::parameters::AnyTensor;

/// The float type in which gradients are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accumulation {
    /// That of the parameter, as Burn's accumulator does.
    #[default]
    AsParameter,
    /// f32 for half types.
    InFullPrecision,
}

impl Accumulation {
    /// The sum of the first gradient.
    pub(crate) fn begin<const D: usize>(self, gradient: Tensor<D>) -> Tensor<D> {
        match (self, gradient.dtype()) {
            (Self::InFullPrecision, DType::F16 | DType::BF16) => gradient.cast(FloatDType::F32),
            _ => gradient,
        }
    }
}

/// Gradients of some uses of a parameter, added up.
#[derive(Debug)]
pub(crate) struct PartialSum {
    sum: AnyTensor,
    /// Of each of them, and of the whole.
    dtype: DType,
}

impl PartialSum {
    pub(crate) fn of(gradient: AnyTensor) -> Self {
        let dtype = gradient.dtype();
        let sum = gradient;
        Self { sum, dtype }
    }

    pub(crate) fn with(self, gradient: AnyTensor, accumulation: Accumulation) -> Self {
        let sum = AnyTensor::from(accumulation.begin(self.sum.untyped()));
        let sum = sum.added(gradient);
        Self { sum, ..self }
    }

    pub(crate) fn whole(self) -> AnyTensor {
        self.sum.in_type(self.dtype)
    }
}
