use burn::tensor::{DType, FloatDType, Shape, Tensor};

use crate::parameters::{AnyTensor, Part, with_rank};

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

    /// The same with the gradient of a part of the parameter, which is of this `shape` as a whole.
    pub(crate) fn with_part(
        sum: Option<Self>,
        shape: &Shape,
        gradient: AnyTensor,
        part: &Part,
        accumulation: Accumulation,
    ) -> Self {
        let dtype = sum.as_ref().map_or(gradient.dtype(), |sum| sum.dtype);
        let sum = with_rank!(shape.num_dims(), D => {
            let sum = match sum {
                Some(Self { sum, .. }) => sum.of_rank::<D>(),
                // `zeros` take twice their bytes on `flex` while they are made.
                None => Tensor::full(shape.clone(), 0.0, (&gradient.device(), gradient.dtype())),
            };
            let sum = accumulation.begin(sum);
            let gradient = gradient.in_type(sum.dtype());
            part.add_to(sum, gradient.of_rank()).into()
        });
        Self { sum, dtype }
    }

    pub(crate) fn whole(self) -> AnyTensor {
        self.sum.in_type(self.dtype)
    }
}
