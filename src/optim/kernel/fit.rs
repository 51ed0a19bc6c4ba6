use std::fmt::{Display, Formatter};

use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};

use super::super::format::{Formats, LowBits, StateTensor, WeightFormat};

/// What can't be updated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(in crate::optim) enum Unfit {
    /// A gradient or an optimizer state that can't be used element by element with its parameter.
    #[error(
        "the {operand} is {found}, but its parameter is {parameter}: it belongs to another model. The \
         parameter was not stepped"
    )]
    Operand {
        operand: &'static str,
        found: String,
        parameter: String,
    },
    #[error(
        "the optimizer state holds low bits of the weight, which `WeightFormat::{0:?}` would drop: use the format \
         that it was written with, or start from the model in full precision. The parameter was not stepped"
    )]
    LowBits(WeightFormat),
    #[error(
        "there is no `StateFormat` but `Full` for parameters in {0:?}: use them in f32, f16 or bf16. \
         This one was not stepped"
    )]
    StateFormat(DType),
    #[error(
        "`WeightFormat::{format:?}` is for parameters in bf16, and this one is in {dtype:?}: use \
         `backburn::cast(model, FloatDType::BF16)`, or `WeightFormat::Plain`. The parameter was not stepped"
    )]
    WeightFormat { format: WeightFormat, dtype: DType },
    #[error(
        "`WeightFormat::{format:?}` is for parameters in bf16, which {device} does not have: use \
         `WeightFormat::Plain` there. The parameter was not stepped"
    )]
    NoBf16 {
        format: WeightFormat,
        device: String,
    },
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

/// Refuses a weight that is not in bf16, around which another optimizer would step in f32.
pub(in crate::optim) fn check_bf16<const D: usize>(
    parameter: &Tensor<D>,
    format: WeightFormat,
) -> Result<(), Unfit> {
    check_format(parameter, format)?;
    match parameter.dtype() {
        DType::BF16 => Ok(()),
        dtype => Err(Unfit::WeightFormat { format, dtype }),
    }
}

/// Refuses a weight that can't be in `format`.
fn check_format<const D: usize>(parameter: &Tensor<D>, format: WeightFormat) -> Result<(), Unfit> {
    let (device, dtype) = (parameter.device(), parameter.dtype());
    if format == WeightFormat::Plain || dtype == DType::BF16 {
        return Ok(());
    }
    match device.supports_dtype(FloatDType::BF16) {
        true => Err(Unfit::WeightFormat { format, dtype }),
        false => Err(Unfit::NoBf16 {
            format,
            device: format!("{device:?}"),
        }),
    }
}

/// Refuses a step in `formats` whose operands don't fit, or that would lose something.
pub(in crate::optim) fn check_step<'a, const D: usize>(
    formats: Formats,
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = &'a StateTensor<D>>,
    low_bits: Option<&LowBits>,
) -> Result<(), Unfit> {
    let (shape, dtype) = (parameter.shape(), parameter.dtype());
    let format = formats.weight_format(parameter);
    if let Some(low_bits) = low_bits
        && dtype == DType::BF16
    {
        if format.low_bytes() == 0 {
            return Err(Unfit::LowBits(format));
        }
        if low_bits.elements != shape.num_elements() {
            return Err(Unfit::Operand {
                operand: "low bits",
                found: format!("of {} elements", low_bits.elements),
                parameter: format!("{:?}", shape.as_slice()),
            });
        }
    }
    if formats.are_plain_for(parameter) {
        return Ok(());
    }
    check_format(parameter, format)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Unfit::StateFormat(dtype));
    }
    check(parameter, gradient, &[])?;
    for state in states {
        let found = match state {
            StateTensor::Full(state) => state.shape(),
            StateTensor::Packed(packed) => packed.shape.clone(),
        };
        if found != shape {
            return Err(Unfit::Operand {
                operand: "optimizer state",
                found: format!("{:?}", found.as_slice()),
                parameter: format!("{:?}", shape.as_slice()),
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
