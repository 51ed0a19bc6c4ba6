use burn::tensor::{FloatDType, Tensor};

use super::super::call;
use super::super::format::{Noise, StateTensor, Weight};
use super::super::rule::Set;
#[cfg(feature = "cubecl")]
use super::group_extension;
use super::group_step::GroupStep;
use super::host;
use super::rule::Rule;

/// Applies `rule` to the elements of a weight and of its states, in f32 whatever they are stored in: group by group,
/// in one pass. CubeCL devices have a kernel for it; of all others the processor does it, in place on `flex` where a
/// buffer has one owner.
///
/// The operands fit each other ([`fit::check_step`](super::fit::check_step)).
pub(crate) fn update_in_format<const D: usize>(
    rule: Rule,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
    noise: Noise,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    call::give_up_reserve();
    let step = GroupStep { rule, noise };
    let (weight, states) = update_groups(step, weight, gradient, states);
    call::renew_reserve(&weight.value);
    (weight, states)
}

/// The weight with these numbers, in f32, in its format.
pub(crate) fn set_in_format<const D: usize>(
    weight: Weight<D>,
    numbers: Tensor<D>,
    noise: Noise,
) -> Weight<D> {
    let rule = Rule::new::<0>(Set);
    let step = GroupStep { rule, noise };
    update_groups(step, weight, numbers, Vec::new()).0
}

/// The trained weight, in f32.
pub(crate) fn in_full<const D: usize>(weight: &Weight<D>) -> Tensor<D> {
    let value = weight.value.clone();
    match weight.low_bits.clone() {
        None => value.cast(FloatDType::F32),
        #[cfg(feature = "cubecl")]
        Some(low_bits) if !low_bits.is_loaded && group_extension::covers(&value) => {
            group_extension::joined(value, low_bits)
        }
        Some(low_bits) => low_bits.joined(value),
    }
}

/// Takes `step` where the operands are.
pub(super) fn update_groups<const D: usize>(
    step: GroupStep,
    weight: Weight<D>,
    gradient: Tensor<D>,
    states: Vec<StateTensor<D>>,
) -> (Weight<D>, Vec<StateTensor<D>>) {
    #[cfg(feature = "cubecl")]
    if group_extension::covers(&weight.value) {
        return group_extension::update(step, weight.into_split(), gradient, states);
    }
    host::update(step, weight, gradient, states)
}
