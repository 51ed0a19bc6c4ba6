//! An update rule is applied to every element of a parameter: on the processor, by a kernel of its device, or by operations.

mod blocks;
#[cfg(feature = "cubecl")]
mod cube;
#[cfg(any(feature = "remote", test))]
mod fit;
mod gradient;
#[cfg(feature = "cubecl")]
mod join;
mod known_step;
mod numbers;
#[cfg(all(test, feature = "wgpu"))]
#[path = "../../../tests/kernels/on_wgpu.rs"]
mod on_wgpu;
mod operations;
#[cfg(feature = "remote")]
mod remote;
mod rule;
mod single_pass;

#[cfg(any(feature = "cubecl", feature = "remote"))]
use burn::backend::Dispatch;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, FloatDType, Tensor};

use super::call;
use super::format::{Noise, StateTensor, Weight, WeightFormat};
use super::rule::Set;
#[cfg(feature = "cubecl")]
use crate::device::is_cubecl;

use gradient::Gradient;
pub(crate) use known_step::try_kernels;
#[cfg(feature = "remote")]
pub(crate) use remote::{UPDATE, run_update};
pub use rule::Rule;
use rule::{MOST_STATES, Update};
#[cfg(any(feature = "cubecl", feature = "remote"))]
pub(crate) use single_pass::SinglePass;
use single_pass::with_operands;

/// Applies `rule` to the elements of a weight and of its states in the step of this number, and returns them. A buffer with one owner is written in
/// place, others are copied. Where all are in floats of one type, it is computed in that, or in f32 if it is half of it;
/// else in f32 whatever they are stored in, a group at a time. An average that the caller has lent goes along with a step that
/// `is_direct`.
pub(super) fn update<const D: usize>(
    rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    mut states: Vec<StateTensor<D>>,
    number: usize,
    is_direct: bool,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let (dtype, format) = (weight.value.dtype(), weight.format);
    let is_alike = |state: &_| matches!(state, StateTensor::Full(full) if full.dtype() == dtype);
    let are_alike = gradient.dtype() == dtype && states.iter().all(is_alike);
    let is_plain = format == WeightFormat::Plain && are_alike;
    let mut update = Update {
        rule,
        average: None,
        formats: (!is_plain).then(|| (format, Noise::of_step(number))),
    };
    let way = Way::of(&weight.value, is_plain);
    if way == Way::Operations {
        return way.update(update, weight, gradient, states);
    }
    // From here on nothing goes wrong. One pass takes an average on, too, if it can.
    let can = is_plain && way != Way::Blocks && states.len() < MOST_STATES;
    let fits = |mean: &Tensor<1>| {
        let (value, is_alike) = (&weight.value, is_direct && can && mean.dtype() == dtype);
        is_alike && mean.shape() == value.shape() && mean.device() == value.device()
    };
    let lent = call::begin_writing(fits);
    if let Some((mean, average)) = lent {
        states.push(StateTensor::Full(mean));
        update.average = Some(average);
    }
    let averages = update.average.is_some();
    let (weight, mut states) = way.update(update, weight, gradient, states);
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
    let set = Update {
        rule: Rule::new::<0>(Set),
        average: None,
        formats: Some((weight.format, noise)),
    };
    let way = Way::of(&weight.value, false);
    way.update(set, weight, numbers, Vec::new()).0
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

/// What applies a rule to the elements of a weight.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The processor, where all operands lie as numbers in which it computes.
    Numbers,
    /// The processor, block by block.
    Blocks,
    /// A kernel of the device.
    #[cfg(any(feature = "cubecl", feature = "remote"))]
    Kernel,
    /// Operations on whole tensors, as in Burn's own optimizers.
    Operations,
}

impl Way {
    /// That of this weight, without formats if `is_plain`: there are no operations for these.
    fn of<const D: usize>(weight: &Tensor<D>, is_plain: bool) -> Self {
        #[allow(unreachable_patterns)] // What is there depends on the build.
        match weight.clone().into_dispatch().kind {
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(BackendTensor::Float(weight)) => match weight.dtype() {
                DType::F32 | DType::F64 if is_plain => Self::Numbers,
                _ => Self::Blocks,
            },
            #[cfg(feature = "cubecl")]
            DispatchTensorKind::Cube(BackendTensor::Float(_)) => Self::Kernel,
            #[cfg(feature = "remote")]
            DispatchTensorKind::Remote(BackendTensor::Float(_)) if is_plain => Self::Kernel,
            _ if is_plain => Self::Operations,
            _ => Self::Blocks,
        }
    }

    /// Takes the step.
    fn update<const D: usize>(
        self,
        update: Update,
        weight: Weight<D>,
        gradient: Tensor<D>,
        states: Vec<StateTensor<D>>,
    ) -> (Weight<D>, Vec<StateTensor<D>>) {
        match self {
            Self::Numbers => numbers::update(&update, weight, gradient, states),
            Self::Blocks => with_operands(weight, states, |operands| {
                Gradient::with(gradient, |gradient| {
                    blocks::update(update, gradient, operands)
                })
            }),
            #[cfg(any(feature = "cubecl", feature = "remote"))]
            Self::Kernel => with_operands(weight, states, |operands| {
                Dispatch::update(gradient.into_dispatch(), operands, update)
            }),
            Self::Operations => operations::update(update.traced(), weight, gradient, states),
        }
    }
}
