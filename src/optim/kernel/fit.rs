use std::fmt::{Debug, Display, Formatter};

#[cfg(any(feature = "remote", test))]
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};

use super::super::format::{Formats, LowBits, WeightFormat};
#[cfg(any(feature = "remote", test))]
use super::rule::Rule;

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
    #[cfg(any(feature = "remote", test))]
    #[error("{rule} updates no parameter in {dtype:?} with {states} states")]
    Rule {
        rule: String,
        dtype: DType,
        states: usize,
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
        "{what} is for parameters in bf16, and this one is in {dtype:?}: use \
         `backburn::cast(model, FloatDType::BF16)`, or {instead}. The parameter was not stepped"
    )]
    NotBf16 {
        what: String,
        dtype: DType,
        instead: &'static str,
    },
    #[error(
        "{what} is for parameters in bf16, which {device} does not have: use {instead} there. The parameter was not \
         stepped"
    )]
    NoBf16 {
        what: String,
        device: String,
        instead: &'static str,
    },
}

/// What all operands of a step share.
#[derive(PartialEq)]
struct Form<D> {
    shape: Shape,
    dtype: DType,
    device: D,
}

/// Refuses a gradient or a state of another shape, dtype or device than its parameter.
pub(super) fn check<'t, const D: usize>(
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = &'t Tensor<D>>,
) -> Result<(), Unfit> {
    let states = states.into_iter().map(Form::of);
    check_forms(&Form::of(parameter), Form::of(gradient), states)
}

/// The same for the tensors of a backend that someone else has put together, with the `rule` to be applied to them.
#[cfg(any(feature = "remote", test))]
pub(super) fn check_sent<T: TensorMetadata>(
    rule: &Rule,
    parameter: &T,
    gradient: &T,
    states: &[T],
) -> Result<(), Unfit> {
    let (dtype, count) = (parameter.dtype(), states.len());
    if !dtype.is_float() || rule.states() != count {
        return Err(Unfit::Rule {
            rule: format!("{rule:?}"),
            dtype,
            states: count,
        });
    }
    let states = states.iter().map(Form::of_primitive);
    check_forms(
        &Form::of_primitive(parameter),
        Form::of_primitive(gradient),
        states,
    )
}

fn check_forms<D: PartialEq + Debug>(
    parameter: &Form<D>,
    gradient: Form<D>,
    states: impl Iterator<Item = Form<D>>,
) -> Result<(), Unfit> {
    let states = states.map(|state| ("optimizer state", state));
    let mut operands = std::iter::once(("gradient", gradient)).chain(states);
    match operands.find(|(_, found)| found != parameter) {
        None => Ok(()),
        Some((operand, found)) => Err(Unfit::Operand {
            operand,
            found: found.to_string(),
            parameter: parameter.to_string(),
        }),
    }
}

/// Refuses a weight that is not in bf16, around which another optimizer would step in f32.
pub(in crate::optim) fn check_around<const D: usize>(
    parameter: &Tensor<D>,
    format: WeightFormat,
) -> Result<(), Unfit> {
    let what = format!("`InFormat` with `WeightFormat::{format:?}`");
    check_bf16(parameter, what, "the optimizer without `InFormat`")
}

fn check_bf16<const D: usize>(
    parameter: &Tensor<D>,
    what: String,
    instead: &'static str,
) -> Result<(), Unfit> {
    let (device, dtype) = (parameter.device(), parameter.dtype());
    if dtype == DType::BF16 {
        Ok(())
    } else if device.supports_dtype(FloatDType::BF16) {
        Err(Unfit::NotBf16 {
            what,
            dtype,
            instead,
        })
    } else {
        let device = format!("{device:?}");
        Err(Unfit::NoBf16 {
            what,
            device,
            instead,
        })
    }
}

/// Refuses a step in `formats` whose operands don't fit, or that would lose something.
pub(in crate::optim) fn check_step<const D: usize>(
    formats: Formats,
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = Shape>,
    low_bits: Option<&LowBits>,
) -> Result<(), Unfit> {
    let (shape, dtype) = (parameter.shape(), parameter.dtype());
    let format = formats.weight_format(parameter);
    let misfit = |operand, found| {
        let parameter = format!("{:?}", shape.as_slice());
        Err(Unfit::Operand {
            operand,
            found,
            parameter,
        })
    };
    if let Some(low_bits) = low_bits {
        if low_bits.elements != shape.num_elements() {
            return misfit("low bits", format!("of {} elements", low_bits.elements));
        }
        let are_dropped = match dtype {
            DType::BF16 => format.low_bytes() == 0,
            // All weights but those in full precision, or others.
            _ => low_bits.are_missing_in(parameter),
        };
        if are_dropped {
            return Err(Unfit::LowBits(format));
        }
    }
    if let Some(found) = states.into_iter().find(|found| *found != shape) {
        return misfit("optimizer state", format!("{:?}", found.as_slice()));
    }
    if formats.are_plain_for(parameter) {
        return check(parameter, gradient, []);
    }
    if format != WeightFormat::Plain {
        let what = format!("`WeightFormat::{format:?}`");
        check_bf16(parameter, what, "`WeightFormat::Plain`")?;
    }
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Unfit::StateFormat(dtype));
    }
    check(parameter, gradient, [])
}

impl Form<Device> {
    fn of<const D: usize>(tensor: &Tensor<D>) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            device: tensor.device(),
        }
    }
}

#[cfg(any(feature = "remote", test))]
impl<D> Form<D> {
    fn of_primitive(tensor: &impl TensorMetadata<Device = D>) -> Self {
        Self {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            device: tensor.device(),
        }
    }
}

impl<D: Debug> Display for Form<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let shape = self.shape.as_slice();
        write!(f, "{shape:?} in {:?} on {:?}", self.dtype, self.device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::DispatchTensorKind;
    use burn::backend::flex::FlexTensor;

    use super::super::super::rule::{Lion, Momentum, Sgd};
    use super::*;

    fn of<const D: usize>(shape: [usize; D], dtype: DType) -> FlexTensor {
        let zeros = Tensor::<D>::zeros(shape, (&Device::flex(), dtype));
        match zeros.into_dispatch().kind {
            DispatchTensorKind::Flex(tensor) => tensor.float(),
            _ => unreachable!("it is on flex"),
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_whoever_has_sent_it() {
        let lion = &Rule::new::<1>(Lion {
            beta_1: 0.9,
            beta_2: 0.99,
            rest_1: 0.1,
            rest_2: 0.01,
            learning_rate: 1e-4,
            decay: 0.999,
        });
        let sgd = &Rule::new::<0>(Sgd {
            learning_rate: 0.1,
            penalty: None,
            momentum: Momentum {
                factor: 0.9,
                rest: 1.0,
                nesterov: false,
            },
        });
        let fits = || of([2, 3], DType::F32);
        let check = |rule, gradient: FlexTensor, states: &[FlexTensor]| {
            check_sent(rule, &fits(), &gradient, states)
        };
        assert_eq!(check(lion, fits(), &[fits()]), Ok(()));
        assert_eq!(check(sgd, fits(), &[]), Ok(()));
        let misfits = [
            of([3, 2], DType::F32),
            of([6], DType::F32),
            of([2, 3, 1], DType::F32),
            of([2, 3], DType::F64),
        ];
        for misfit in misfits {
            let is_operand = |checked| matches!(checked, Err(Unfit::Operand { .. }));
            assert!(is_operand(check(lion, misfit.clone(), &[fits()])));
            assert!(is_operand(check(lion, fits(), &[misfit])));
        }
        for states in [vec![], vec![fits(); 2], vec![fits(); 5]] {
            let refused = check(lion, fits(), &states);
            assert!(matches!(refused, Err(Unfit::Rule { .. })), "{refused:?}");
        }
        assert!(check(sgd, fits(), &[fits(), fits()]).is_err());
    }
}
