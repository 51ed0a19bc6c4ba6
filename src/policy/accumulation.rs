use burn::tensor::{DType, FloatDType, Tensor};

use crate::device::{in_type, sent};
use crate::parameters::Part;

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
pub(crate) struct PartialSum<const D: usize> {
    sum: Tensor<D>,
    /// Of each of them, and of the whole.
    dtype: DType,
}

impl<const D: usize> PartialSum<D> {
    pub(crate) fn of(gradient: Tensor<D>) -> Self {
        let dtype = gradient.dtype();
        let sum = gradient;
        Self { sum, dtype }
    }

    pub(crate) fn with(self, gradient: Tensor<D>, accumulation: Accumulation) -> Self {
        let sum = add(accumulation.begin(self.sum), gradient);
        Self { sum, ..self }
    }

    /// The same with the gradient of a part of the parameter, which is of this `shape` as a whole.
    pub(crate) fn with_part(
        sum: Option<Self>,
        shape: [usize; D],
        gradient: Tensor<D>,
        part: &Part,
        accumulation: Accumulation,
    ) -> Self {
        let none = || {
            let options = (&gradient.device(), gradient.dtype());
            // `zeros` take twice their bytes on `flex` while they are made.
            Self::of(Tensor::full(shape, 0.0, options))
        };
        let Self { sum, dtype } = sum.unwrap_or_else(none);
        let sum = accumulation.begin(sum);
        let gradient = in_type(gradient, sum.dtype());
        let sum = part.add_to(sum, gradient);
        Self { sum, dtype }
    }

    pub(crate) fn whole(self) -> Tensor<D> {
        in_type(self.sum, self.dtype)
    }
}

/// A sum with one gradient more, in the buffer of the sum.
pub(crate) fn add<const D: usize>(sum: Tensor<D>, gradient: Tensor<D>) -> Tensor<D> {
    let gradient = in_type(gradient, sum.dtype());
    sum.add(gradient)
}

/// The same for a sum that stays as it is, in the buffer of the gradient.
pub(crate) fn added<const D: usize>(sum: &Tensor<D>, gradient: Tensor<D>) -> Tensor<D> {
    let sum = sent(sum.clone(), &gradient.device());
    in_type(gradient, sum.dtype()).add(sum)
}
