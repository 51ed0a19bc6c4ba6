use std::fmt::{Display, Formatter};

use burn::tensor::{DType, Device, Shape, Tensor};

/// A gradient or an optimizer state that can't be used element by element with its parameter.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the {operand} is {found}, but its parameter is {parameter}: it belongs to another model. Nothing \
     was written"
)]
pub(super) struct Unfit {
    operand: &'static str,
    found: String,
    parameter: String,
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
            return Err(Unfit {
                operand,
                found: found.to_string(),
                parameter: expected.to_string(),
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
