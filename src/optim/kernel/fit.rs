//! Whether what a client has sent can be updated.

use burn::backend::TensorMetadata;

use super::super::format::check_forms;
use super::super::rule::Rule;

/// Refuses tensors of a backend that someone else has put together and that don't fit, or the `rule` to be applied to them.
pub(super) fn check_sent<T: TensorMetadata>(
    rule: &Rule,
    parameter: &T,
    gradient: &T,
    states: &[T],
) -> Result<(), String> {
    let (dtype, count) = (parameter.dtype(), states.len());
    if !dtype.is_float() || rule.states != count {
        return Err(format!(
            "{rule:?} updates no parameter in {dtype:?} with {count} states"
        ));
    }
    let form = |tensor: &T| (tensor.shape(), tensor.dtype(), tensor.device());
    check_forms(form(parameter), form(gradient), states.iter().map(form))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::DispatchTensorKind;
    use burn::backend::flex::FlexTensor;
    use burn::tensor::{DType, Device, Tensor};

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
