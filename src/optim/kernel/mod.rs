//! One contract, one file a backend: an update rule is applied to every element of a parameter.

#[cfg(feature = "cubecl")]
mod cube;
mod fit;
mod gradient;
mod host;
#[cfg(feature = "cubecl")]
mod join;
mod known_step;
#[cfg(all(test, feature = "wgpu"))]
#[path = "../../../tests/kernels/on_wgpu.rs"]
mod on_wgpu;
mod operands;
mod operations;
mod pass;
#[cfg(feature = "remote")]
mod remote;
mod rule;
mod single_pass;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTensor, Dispatch, DispatchTensorKind};
use burn::tensor::{FloatDType, Tensor, read_sync};

use super::call;
use super::format::{Noise, StateTensor, Weight, WeightFormat};
use super::rule::Set;
use gradient::Gradient;
use operands::Operands;
use single_pass::Update;

pub(super) use fit::{check_around, check_step};
pub(crate) use known_step::try_kernels;
#[cfg(feature = "remote")]
pub(crate) use remote::{UPDATE, run_update};
pub use rule::Rule;
pub(crate) use single_pass::SinglePass;

/// Applies `rule` to the elements of a weight and of its states in the step of this number, and returns them. A buffer with one owner is written in
/// place, others are copied. Where all are in floats of one type, it is computed in that, or in f32 if it is half of it;
/// else in f32 whatever they are stored in, a group at a time.
///
/// Devices of CubeCL, `flex` and servers (without formats) have kernels for it. For all others the processor does it, or
/// operations on whole tensors, as in Burn's own optimizers, where there are no formats.
///
/// # Panics
///
/// Without formats, if the gradient or a state does not fit the parameter; nothing is written then. (With formats, they
/// have been [checked](check_step).)
pub(super) fn update<const D: usize>(
    rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    mut states: Vec<StateTensor<D>>,
    number: usize,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let dtype = weight.value.dtype();
    let full = states.iter().map_while(|state| match state {
        StateTensor::Full(full) if full.dtype() == dtype => Some(full),
        _ => None,
    });
    let are_alike = gradient.dtype() == dtype && full.clone().count() == states.len();
    if weight.format != WeightFormat::Plain || !are_alike {
        let formats = Some((weight.format, Noise::of_step(number)));
        let step = step_on(&weight.value, false);
        return written(step, Update { rule, formats }, weight, gradient, states);
    }
    fit::check(&weight.value, &gradient, full).unwrap_or_else(|error| panic!("{error}"));
    if !has_kernel(&weight.value, true) {
        let states = states.into_iter().map(StateTensor::full).collect();
        let (value, states) = operations::update(rule.0.traced(), weight.value, gradient, states);
        let states = states.into_iter().map(StateTensor::Full).collect();
        return (Weight { value, ..weight }, states);
    }
    let (step, formats): (Step, _) = (Dispatch::update, None);
    // One pass takes an average on, too, if it can.
    let joined = call::borrow_average(|mean, average| {
        let fits = fit::check(&weight.value, mean, []).is_ok();
        fits.then(|| rule.0.with_average(average)).flatten()
    });
    let Some((rule, mean)) = joined else {
        return written(step, Update { rule, formats }, weight, gradient, states);
    };
    states.push(StateTensor::Full(mean));
    let (weight, mut states) = written(step, Update { rule, formats }, weight, gradient, states);
    let mean = states.pop().expect("it is the last of them");
    call::return_average(mean.full());
    (weight, states)
}

/// Takes a step that does not fail any more.
fn written<const D: usize>(
    step: Step,
    update: Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    call::give_up_reserve();
    let (weight, states) = pass_by(step, update, weight, gradient, states);
    call::renew_reserve(&weight.value);
    (weight, states)
}

/// The weight with these numbers, in f32, in its format.
pub(super) fn set_in_format<const D: usize>(
    weight: Weight<D>,
    numbers: Tensor<D>,
    noise: Noise,
) -> Weight<D> {
    let update = Update {
        rule: Rule::new::<0>(Set),
        formats: Some((weight.format, noise)),
    };
    pass(update, weight, numbers, Vec::new()).0
}

/// The trained weight, in f32.
pub(super) fn in_full<const D: usize>(weight: &Weight<D>) -> Tensor<D> {
    let value = weight.value.clone();
    match weight.low_bits.clone() {
        None => value.cast(FloatDType::F32),
        #[cfg(feature = "cubecl")]
        Some(low_bits) if !low_bits.is_loaded && join::covers(&value) => {
            join::joined(value, low_bits)
        }
        Some(low_bits) => low_bits.joined(value),
    }
}

/// Whether the backend of `tensor` has a kernel, `without_formats` or with.
#[allow(unused_variables)] // What is there depends on the build.
fn has_kernel<const D: usize>(tensor: &Tensor<D>, without_formats: bool) -> bool {
    #[allow(unreachable_patterns)]
    match tensor.clone().into_dispatch().kind {
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(BackendTensor::Float(_)) => true,
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(BackendTensor::Float(_)) => true,
        #[cfg(feature = "remote")]
        DispatchTensorKind::Remote(BackendTensor::Float(_)) => without_formats,
        _ => false,
    }
}

/// Takes the step where the operands are, or on the processor.
fn pass<const D: usize>(
    update: Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let step = step_on(&weight.value, update.formats.is_none());
    pass_by(step, update, weight, gradient, states)
}

/// A [`SinglePass::update`].
type Step = fn(FloatTensor<Dispatch>, Operands<Dispatch>, Update) -> Operands<Dispatch>;

/// That of the backend of `tensor`, if it has a kernel.
fn step_on<const D: usize>(tensor: &Tensor<D>, without_formats: bool) -> Step {
    match has_kernel(tensor, without_formats) {
        true => Dispatch::update,
        false => on_host,
    }
}

fn pass_by<const D: usize>(
    step: Step,
    update: Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    #[cfg(feature = "cubecl")]
    let weight = if join::covers(&weight.value) {
        weight.into_split()
    } else {
        weight
    };
    let format = weight.format;
    let operands = Operands::of(weight, states);
    step(gradient.into_dispatch(), operands, update).into_tensors(format)
}

fn on_host(
    gradient: FloatTensor<Dispatch>,
    operands: Operands<Dispatch>,
    update: Update,
) -> Operands<Dispatch> {
    let gradient = read_sync(Dispatch::float_into_data(gradient));
    let gradient = gradient.expect("a gradient can be read");
    host::update(update, Gradient::of_data(&gradient), operands)
}
