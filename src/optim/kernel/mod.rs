//! One contract, one file a backend: an update rule is applied to every element of a parameter.

#[cfg(feature = "cubecl")]
mod cube;
mod extension;
mod fit;
mod formatted;
mod gradient;
#[cfg(feature = "cubecl")]
mod group_extension;
#[cfg(feature = "cubecl")]
mod group_operands;
mod group_step;
mod host;
mod known_step;
#[cfg(all(test, feature = "wgpu"))]
#[path = "../../../tests/kernels/on_wgpu.rs"]
mod on_wgpu;
mod operations;
mod pass;
#[cfg(feature = "remote")]
mod remote;
mod rule;

use burn::backend::{BackendTensor, Dispatch, DispatchTensorKind};
use burn::tensor::Tensor;

use super::call::{self, Carried};
use super::format::{Noise, StateTensor, Weight, WeightFormat};
use extension::Operands;
pub(crate) use extension::SinglePass;

pub(super) use fit::{check_around, check_step};
pub(super) use formatted::{in_full, set_in_format, update_in_format};
pub(crate) use known_step::try_kernels;
#[cfg(feature = "remote")]
pub(crate) use remote::{UPDATE, run_update};
pub use rule::Rule;

/// Whether [`update`] has a fast kernel for the backend of `tensor`.
fn covers<const D: usize>(tensor: &Tensor<D>) -> bool {
    #[allow(unreachable_patterns)] // What is there depends on the backends that are built.
    match tensor.clone().into_dispatch().kind {
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(BackendTensor::Float(_)) => true,
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Float(_)) => true,
        #[cfg(feature = "remote")]
        DispatchTensorKind::Remote(BackendTensor::Float(_)) => true,
        _ => false,
    }
}

/// Applies `rule` to the elements of a weight and of its states, and returns them. Where all are in floats of one type, and
/// the weight is in no format, it is computed in that, or in f32 if it is half of it; else in f32 whatever they are stored
/// in, in one pass over memory.
pub(super) fn step<const D: usize>(
    rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
    noise: Noise,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let dtype = weight.value.dtype();
    let is_alike =
        |state: &StateTensor<D>| matches!(state, StateTensor::Full(full) if full.dtype() == dtype);
    if weight.format != WeightFormat::Plain || !states.iter().all(is_alike) {
        return update_in_format(rule, weight, gradient, states, noise);
    }
    let states = states.into_iter().map(StateTensor::full).collect();
    let (value, states) = update(rule, weight.value, gradient, states);
    let states = states.into_iter().map(StateTensor::Full).collect();
    (Weight { value, ..weight }, states)
}

/// Applies `rule` to the elements of `parameter` and of its `states`, and returns them. A buffer with
/// one owner is written in place, others are copied.
///
/// # Panics
///
/// If the gradient or a state does not fit the parameter; nothing is written then.
pub(super) fn update<const D: usize>(
    rule: Rule,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    states: Vec<Tensor<D>>,
) -> (Tensor<D>, Vec<Tensor<D>>) {
    fit::check(&parameter, &gradient, &states).unwrap_or_else(|error| panic!("{error}"));
    if !covers(&parameter) {
        return operations::update(rule.traced(), parameter, gradient, states);
    }
    let (rule, carried) = carrying(rule, &parameter);
    let (average, mean) = carried.map(|it| (it.average, it.mean)).unzip();
    call::give_up_reserve();
    let states = states.into_iter().chain(mean);
    let states = states.map(Tensor::into_dispatch).collect();
    let operands = Operands::new(parameter.into_dispatch(), states);
    let updated = Dispatch::update(gradient.into_dispatch(), operands, rule);
    let (parameter, states) = updated.into_parts();
    let mut states: Vec<_> = states.into_iter().map(Tensor::from_dispatch).collect();
    let parameter = Tensor::from_dispatch(parameter);
    call::renew_reserve(&parameter);
    if let Some(average) = average {
        let mean = states.pop().expect("it is the last of them");
        call::give_average(Carried {
            average,
            mean,
            is_done: true,
        });
    }
    (parameter, states)
}

/// `rule` with the average of `parameter` that the caller has, if one pass can do both.
fn carrying<const D: usize>(rule: Rule, parameter: &Tensor<D>) -> (Rule, Option<Carried<D>>) {
    let Some(carried) = call::average::<D>() else {
        return (rule, None);
    };
    let fits = fit::check(parameter, &carried.mean, &[]).is_ok();
    match rule.averaging(carried.average).filter(|_| fits) {
        Some(rule) => (rule, Some(carried)),
        None => {
            call::give_average(carried);
            (rule, None)
        }
    }
}
