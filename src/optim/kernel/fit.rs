use std::fmt::{Display, Formatter};

use burn::tensor::{DType, Device, Shape, Tensor};

use super::super::format::{StateTensor, WeightFormat};
use crate::device::is_cubecl;

/// What can't be updated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum Unfit {
    /// A gradient or an optimizer state that can't be used element by element with its parameter.
    #[error(
        "the {operand} is {found}, but its parameter is {parameter}: it belongs to another model. Nothing \
         was written"
    )]
    Operand {
        operand: &'static str,
        found: String,
        parameter: String,
    },
    #[error(
        "{0} has no kernel for weights or optimizer states in formats: use `StateFormat::Full` and \
         `WeightFormat::Plain` there. Nothing was written"
    )]
    Device(String),
    #[error(
        "there is no `StateFormat` but `Full` for parameters in {0:?}: use them in f32, f16 or bf16. Nothing \
         was written"
    )]
    StateFormat(DType),
    #[error(
        "`WeightFormat::{format:?}` is for parameters in bf16, and this one is in {dtype:?}: use \
         `backburn::cast(model, FloatDType::BF16)`, or `WeightFormat::Plain`. Nothing was written"
    )]
    WeightFormat { format: WeightFormat, dtype: DType },
}

/// What all operands of a step share.
#[derive(PartialEq)]
struct Form {
    shape: Shape,
    dtype: DType,
    device: Device,
}

/// Refuses a gradient or a state of another shape, dtype or device than its parameter.
pub(super) fn check<const D: usize>(
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: &[Tensor<D>],
) -> Result<(), Unfit> {
    let expected = Form::of(parameter);
    let states = states.iter().map(|state| ("optimizer state", state));
    for (operand, tensor) in std::iter::once(("gradient", gradient)).chain(states) {
        let found = Form::of(tensor);
        if found != expected {
            return Err(Unfit::Operand {
                operand,
                found: found.to_string(),
                parameter: expected.to_string(),
            });
        }
    }
    Ok(())
}

/// Refuses a weight that can't be in `format`.
pub(super) fn check_format<const D: usize>(
    parameter: &Tensor<D>,
    format: WeightFormat,
) -> Result<(), Unfit> {
    let (device, dtype) = (parameter.device(), parameter.dtype());
    if is_cubecl(&device) {
        return Err(Unfit::Device(format!("{device:?}")));
    }
    match format != WeightFormat::Plain && dtype != DType::BF16 {
        true => Err(Unfit::WeightFormat { format, dtype }),
        false => Ok(()),
    }
}

/// As [`check`], where weight or states are in a format; states are in f32, or in codes of it.
pub(super) fn check_formats<const D: usize>(
    parameter: &Tensor<D>,
    format: WeightFormat,
    gradient: &Tensor<D>,
    states: &[StateTensor<D>],
) -> Result<(), Unfit> {
    let dtype = parameter.dtype();
    check_format(parameter, format)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Unfit::StateFormat(dtype));
    }
    check(parameter, gradient, &[])?;
    let expected = parameter.shape();
    for state in states {
        let found = match state {
            StateTensor::Full(state) => state.shape(),
            StateTensor::Packed(packed) => packed.shape.clone(),
        };
        if found != expected {
            return Err(Unfit::Operand {
                operand: "optimizer state",
                found: format!("{:?}", found.as_slice()),
                parameter: format!("{:?}", expected.as_slice()),
            });
        }
    }
    Ok(())
}

impl Form {
    fn of<const D: usize>(tensor: &Tensor<D>) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            device: tensor.device(),
        }
    }
}

impl Display for Form {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let shape = self.shape.as_slice();
        write!(f, "{shape:?} in {:?} on {:?}", self.dtype, self.device)
    }
}
