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
#[cfg(feature = "cubecl")]
use crate::device::is_cubecl;
use gradient::Gradient;
use single_pass::{Operands, Update};

pub(super) use fit::{check_bf16, check_step};
pub(crate) use known_step::try_kernels;
#[cfg(feature = "remote")]
pub(crate) use remote::{UPDATE, run_update};
use rule::MOST_STATES;
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
    mut rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    mut states: Vec<StateTensor<D>>,
    number: usize,
    is_direct: bool,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let dtype = weight.value.dtype();
    let full = states.iter().map_while(|state| match state {
        StateTensor::Full(full) if full.dtype() == dtype => Some(full),
        _ => None,
    });
    let are_alike = gradient.dtype() == dtype && full.clone().count() == states.len();
    let is_plain = weight.format == WeightFormat::Plain && are_alike;
    let mut has_room = false;
    if is_plain {
        fit::check(&weight.value, &gradient, full).unwrap_or_else(|error| panic!("{error}"));
        if !has_kernel(&weight.value, true) {
            let states = states.into_iter().map(StateTensor::full).collect();
            let (value, states) = operations::update(rule.traced(), weight.value, gradient, states);
            let states = states.into_iter().map(StateTensor::Full).collect();
            return (Weight { value, ..weight }, states);
        }
        has_room = states.len() < MOST_STATES;
    }
    let formats = (!is_plain).then(|| (weight.format, Noise::of_step(number)));
    // From here on nothing goes wrong. One pass takes an average on, too, if it can.
    let lent = call::begin_writing(|mean| {
        let is_alike = mean.dtype() == dtype && mean.shape() == weight.value.shape();
        is_direct && has_room && is_alike && mean.device() == weight.value.device()
    });
    let averages = lent.is_some();
    if let Some((mean, average)) = lent {
        states.push(StateTensor::Full(mean));
        rule.average = Some(average);
    }
    let (weight, mut states) = pass(Update { rule, formats }, weight, gradient, states);
    let mean = averages.then(|| states.pop().expect("it is the last of them").full());
    call::end_writing(&weight.value, mean);
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
        Some(low_bits) if !low_bits.is_loaded && is_cubecl(&value.device()) => {
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
    let has_kernel = has_kernel(&weight.value, update.formats.is_none());
    let step: Step = if has_kernel {
        Dispatch::update
    } else {
        on_host
    };
    pass_by(step, update, weight, gradient, states)
}

/// A [`SinglePass::update`].
type Step = fn(FloatTensor<Dispatch>, Operands<Dispatch>, Update) -> Operands<Dispatch>;

fn pass_by<const D: usize>(
    step: Step,
    update: Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    #[cfg(feature = "cubecl")]
    let weight = match is_cubecl(&weight.value.device()) {
        true => weight.into_split(),
        false => weight,
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
