//! One contract, one file a backend: an update rule is applied to every element of a parameter.

#[cfg(feature = "cubecl")]
mod cube;
mod extension;
mod fit;
#[cfg(feature = "flex")]
mod flex;
mod formatted;
#[cfg(feature = "cubecl")]
mod group_extension;
#[cfg(feature = "cubecl")]
mod group_operands;
mod group_pass;
mod group_slices;
mod group_step;
mod groups;
mod host;
mod known_step;
#[cfg(all(test, feature = "wgpu"))]
mod on_wgpu;
mod operations;
#[cfg(feature = "remote")]
mod remote;
mod rule;

use burn::backend::{BackendTensor, Dispatch, DispatchTensorKind};
use burn::tensor::{FloatDType, Shape, Tensor};

use super::call;
use super::format::{Formats, LowBits};
use extension::Operands;
pub(crate) use extension::SinglePass;

pub(super) use fit::{check_around, check_step};
pub(super) use formatted::{in_full, set_in_format, update_in_format};
pub(crate) use known_step::try_kernels;
#[cfg(feature = "remote")]
pub(crate) use remote::{UPDATE, run_update};
pub use rule::Rule;

/// Whether [`update`] has a fast kernel for the backend of `tensor`.
pub(super) fn covers<const D: usize>(tensor: &Tensor<D>) -> bool {
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

/// Why a step in `formats` can't be, or would lose something.
pub(super) fn refusal<const D: usize>(
    formats: Formats,
    parameter: &Tensor<D>,
    gradient: &Tensor<D>,
    states: impl IntoIterator<Item = Shape>,
    low_bits: Option<&LowBits>,
) -> Option<String> {
    let checked = check_step(formats, parameter, gradient, states, low_bits);
    checked.err().map(|reason| reason.to_string())
}

/// Applies `rule` to the elements of `parameter` and of its `states`, and returns them. A buffer with
/// one owner is written in place, others are copied. States of another float type are cast: Burn loads
/// them from a record in that of its default device.
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
    let float: FloatDType = parameter.dtype().into();
    let states = states.into_iter();
    let states = states.map(|state| match state.dtype() == parameter.dtype() {
        true => state,
        false => state.cast(float),
    });
    let states: Vec<Tensor<D>> = states.collect();
    fit::check(&parameter, &gradient, &states).unwrap_or_else(|error| panic!("{error}"));
    if !covers(&parameter) {
        return operations::update(rule.traced(), parameter, gradient, states);
    }
    call::give_up_reserve();
    let states = states.into_iter().map(Tensor::into_dispatch).collect();
    let operands = Operands::new(parameter.into_dispatch(), states);
    let updated = Dispatch::update(gradient.into_dispatch(), operands, rule);
    let (parameter, states) = updated.into_parts();
    let states = states.into_iter().map(Tensor::from_dispatch).collect();
    let parameter = Tensor::from_dispatch(parameter);
    call::renew_reserve(&parameter);
    (parameter, states)
}
