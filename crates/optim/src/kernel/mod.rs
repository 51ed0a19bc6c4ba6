//! Application of an update rule to every element of a parameter: on the processor, by a kernel of its device, or by tensor
//! operations.

mod blocks;
#[cfg(feature = "cubecl")]
mod cube;
#[cfg(all(test, feature = "flex", feature = "wgpu"))]
mod on_wgpu;
mod operations;
mod single_pass;

use std::iter::once;
use std::sync::OnceLock;

#[cfg(feature = "cubecl")]
use burn::backend::Dispatch;
use burn::tensor::{FloatDType, Tensor};

use super::call;
use super::format::{Noise, PackedState, Residual, StateTensor, Weight, WeightFormat};
use super::rule::{Rule, Traced};

#[cfg(feature = "cubecl")]
use single_pass::Operands;
#[cfg(feature = "cubecl")]
pub(crate) use single_pass::SinglePass;
use single_pass::Stored;

/// The update of every element in a step.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    rule: Rule,
    /// Format and rounding of the weight, with the computation in f32. `None` if all operands are floats of one type.
    formats: Option<(WeightFormat, Noise)>,
    /// Traced once: the formula of a user may panic the second time.
    traced: OnceLock<Traced>,
}

impl Update {
    /// Returns the operations of the rule.
    fn traced(&self) -> Traced {
        let traced = || self.rule.formula.traced();
        self.traced.get_or_init(traced).clone()
    }
}

/// Applies `rule` to the elements of a weight and of its states, in the step of this `number`, and returns them.
///
/// A buffer with one owner is written in place; others are copied. The step is computed in f32, or in f64 if the operands are.
pub(super) fn update<const D: usize>(
    rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
    number: usize,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let (dtype, format) = (weight.value.dtype(), weight.format);
    let is_alike = |state: &_| matches!(state, StateTensor::Full(full) if full.dtype() == dtype);
    let are_alike = gradient.dtype() == dtype && states.iter().all(is_alike);
    let is_plain = format == WeightFormat::Plain && are_alike;
    let update = Update {
        rule,
        formats: (!is_plain).then(|| (format, Noise::of_step(number))),
        traced: OnceLock::new(),
    };
    #[allow(unreachable_patterns)] // The variants depend on the features.
    let has_single_pass = match weight.value.clone().into_dispatch().kind {
        #[cfg(feature = "flex")]
        burn::backend::DispatchTensorKind::Flex(_) if dtype != burn::tensor::DType::F64 => true,
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchTensorKind::Cube(_) => true,
        // Operations support no formats.
        _ => !is_plain,
    };
    if !has_single_pass {
        let states = states.into_iter().map(StateTensor::full);
        let floats = once(weight.value).chain(states).collect();
        let updated = || operations::update(&update, gradient, floats);
        let mut floats = call::without_caller(updated).into_iter();
        let value = floats.next().expect("a weight is there");
        let weight = Weight { value, ..weight };
        return (weight, floats.map(StateTensor::Full).collect());
    }
    if update.rule.may_panic {
        // The caller still holds the value. On the processor the formula runs again, and a panic loses the value.
        update.traced();
    }
    // The step writes in place. Its caller then has the updated parameter.
    call::with(|call| call.parameter = None);
    let (weight, states) = call::without_caller(|| single_pass(update, weight, gradient, states));
    call::with(|call| {
        call.parameter = Some(weight.value.clone().into());
        call.has_written = true;
    });
    (weight, states)
}

/// Returns the trained weight, in f32.
pub(super) fn in_full<const D: usize>(weight: &Weight<D>) -> Tensor<D> {
    let value = weight.value.clone();
    match weight.residual.clone() {
        None => value.cast(FloatDType::F32),
        Some(residual) => residual.joined(value),
    }
}

/// Updates a weight and its states by a kernel of the device, or block by block on the processor.
fn single_pass<const D: usize>(
    update: Update,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    let (shape, format) = (weight.value.shape(), weight.format);
    let value = weight.value.into_dispatch();
    #[cfg(feature = "cubecl")]
    let has_kernel = matches!(value.kind, burn::backend::DispatchTensorKind::Cube(_));
    #[cfg(not(feature = "cubecl"))]
    let has_kernel = false;
    let weight = match weight.residual {
        None => Stored::Floats(value),
        Some(low) => Stored::Split(value, low.words.into_dispatch()),
    };
    let states = states.into_iter().map(|state| match state {
        StateTensor::Full(state) => Stored::Floats(state.into_dispatch()),
        StateTensor::Packed(packed) => {
            let (codes, scales) = (packed.codes.into_dispatch(), packed.scales.into_dispatch());
            Stored::Codes(scales, codes, packed.scheme)
        }
    });
    let stored = once(weight).chain(states);
    let all: Vec<_> = match has_kernel {
        #[cfg(feature = "cubecl")]
        true => {
            let operands = Operands::new(stored);
            Dispatch::update(gradient.into_dispatch(), operands, update)
                .all()
                .collect()
        }
        _ => blocks::update(&update, gradient, stored.collect()),
    };
    let mut all = all.into_iter();
    let (value, words) = match all.next() {
        Some(Stored::Split(value, words)) => (value, Some(words)),
        Some(Stored::Floats(value)) => (value, None),
        _ => unreachable!("a weight has its elements"),
    };
    let weight = Weight {
        value: Tensor::from_dispatch(value),
        format,
        residual: words.map(|words| Residual {
            words: Tensor::from_dispatch(words),
            elements: shape.num_elements(),
        }),
    };
    let states = all.map(|state| match state {
        Stored::Floats(state) => StateTensor::Full(Tensor::from_dispatch(state)),
        Stored::Codes(scales, codes, scheme) => StateTensor::Packed(PackedState {
            codes: Tensor::from_dispatch(codes),
            scales: Tensor::from_dispatch(scales),
            scheme,
            shape: shape.clone(),
        }),
        _ => unreachable!("a state is whole"),
    });
    (weight, states.collect())
}
