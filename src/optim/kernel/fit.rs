//! What can't be updated, with the reason.

use std::fmt::Debug;

#[cfg(any(feature = "remote", test))]
use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType, Shape, Tensor};

use super::super::format::{Fitted, LowBits, WeightFormat};
#[cfg(any(feature = "remote", test))]
use super::rule::Rule;

/// What all operands of a step share.
type Form<D> = (Shape, DType, D);

/// Refuses a gradient or a state of another shape, dtype or device than its parameter.
pub(super) fn check<'t, const D: usize>(
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = &'t Tensor<D>>,
) -> Result<(), String> {
    let form = |tensor: &Tensor<D>| (tensor.shape(), tensor.dtype(), tensor.device());
    let states = states.into_iter().map(form);
    check_forms(form(parameter), form(gradient), states)
}

/// The same for the tensors of a backend that someone else has put together, with the `rule` to be applied to them.
#[cfg(any(feature = "remote", test))]
pub(super) fn check_sent<T: TensorMetadata>(
    rule: &Rule,
    parameter: &T,
    gradient: &T,
    states: &[T],
) -> Result<(), String> {
    let (dtype, count) = (parameter.dtype(), states.len());
    if !dtype.is_float() || rule.formula.states() != count {
        return Err(format!(
            "{rule:?} updates no parameter in {dtype:?} with {count} states"
        ));
    }
    let form = |tensor: &T| (tensor.shape(), tensor.dtype(), tensor.device());
    check_forms(form(parameter), form(gradient), states.iter().map(form))
}

fn check_forms<D: PartialEq + Debug>(
    parameter: Form<D>,
    gradient: Form<D>,
    states: impl Iterator<Item = Form<D>>,
) -> Result<(), String> {
    let states = states.map(|state| ("optimizer state", state));
    let mut operands = std::iter::once(("gradient", gradient)).chain(states);
    let Some((operand, found)) = operands.find(|(_, found)| *found != parameter) else {
        return Ok(());
    };
    let told = |(shape, dtype, device): Form<D>| {
        format!("{:?} in {dtype:?} on {device:?}", shape.as_slice())
    };
    misfit(operand, &told(found), &told(parameter))
}

/// The gradient, or something in the state, can't be used element by element with the parameter.
fn misfit(operand: &str, found: &str, parameter: &str) -> Result<(), String> {
    Err(format!(
        "the {operand} is {found}, but its parameter is {parameter}: it belongs to another model. The parameter was not \
         stepped"
    ))
}

/// Refuses a parameter that is not in bf16, for which `what` is; `instead` does without.
pub(in crate::optim) fn check_bf16<const D: usize>(
    parameter: &Tensor<D>,
    what: &str,
    instead: &str,
) -> Result<(), String> {
    let (device, dtype) = (parameter.device(), parameter.dtype());
    if dtype == DType::BF16 {
        return Ok(());
    }
    Err(if device.supports_dtype(FloatDType::BF16) {
        format!(
            "{what} is for parameters in bf16, and this one is in {dtype:?}: use \
             `backburn::cast(model, FloatDType::BF16)`, or {instead}. The parameter was not stepped"
        )
    } else {
        format!(
            "{what} is for parameters in bf16, which {device:?} does not have: use {instead} there. The parameter was \
             not stepped"
        )
    })
}

/// Refuses a step in `formats` whose operands don't fit, or that would lose something.
pub(in crate::optim) fn check_step<const D: usize>(
    formats: Fitted,
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = Shape>,
    low_bits: Option<&LowBits>,
) -> Result<(), String> {
    let (shape, dtype) = (parameter.shape(), parameter.dtype());
    let format = formats.weight;
    let misfit =
        |operand, found: String| misfit(operand, &found, &format!("{:?}", shape.as_slice()));
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
            return Err(format!(
                "the optimizer state holds low bits of the weight, which `WeightFormat::{format:?}` would drop: use the \
                 format that it was written with, or start from the model in full precision. The parameter was not stepped"
            ));
        }
    }
    if let Some(found) = states.into_iter().find(|found| *found != shape) {
        return misfit("optimizer state", format!("{:?}", found.as_slice()));
    }
    if format != WeightFormat::Plain {
        let what = format!("`WeightFormat::{format:?}`");
        check_bf16(parameter, &what, "`WeightFormat::Plain`")?;
    }
    let is_computed_in_f32 = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_computed_in_f32 && !formats.is_plain {
        return Err(format!(
            "there is no `StateFormat` but `Full` for parameters in {dtype:?}: use them in f32, f16 or bf16. This one was \
             not stepped"
        ));
    }
    check(parameter, gradient, [])
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::DispatchTensorKind;
    use burn::backend::flex::FlexTensor;
    use burn::tensor::Device;

    use super::super::super::rule::{Momentum, Set};
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
        let of_one = &Rule::new::<1>(Momentum {
            factor: 0.9,
            rest: 1.0,
            nesterov: false,
        });
        let of_none = &Rule::new::<0>(Set);
        let fits = || of([2, 3], DType::F32);
        let check = |rule, gradient: FlexTensor, states: &[FlexTensor]| {
            check_sent(rule, &fits(), &gradient, states)
        };
        assert_eq!(check(of_one, fits(), &[fits()]), Ok(()));
        assert_eq!(check(of_none, fits(), &[]), Ok(()));
        let misfits = [
            of([3, 2], DType::F32),
            of([6], DType::F32),
            of([2, 3, 1], DType::F32),
            of([2, 3], DType::F64),
        ];
        for misfit in misfits {
            let is_operand = |checked: Result<(), String>| {
                checked.is_err_and(|reason| reason.contains("belongs to another model"))
            };
            assert!(is_operand(check(of_one, misfit.clone(), &[fits()])));
            assert!(is_operand(check(of_one, fits(), &[misfit])));
        }
        for states in [vec![], vec![fits(); 2], vec![fits(); 5]] {
            let refused = check(of_one, fits(), &states);
            assert!(refused.is_err_and(|reason| reason.contains("updates no parameter")));
        }
        assert!(check(of_none, fits(), &[fits(), fits()]).is_err());
    }
}
