use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, bf16, f16};
use pulp::Arch;

use super::super::super::format::{GROUP, Noise};
use super::super::super::rule::UpdateRule;
use super::super::groups::{GradientSource, Groups};
use super::GRAIN;
use super::gradient::{Gradient, Stored, gather};

/// Updates groups of elements in formats, with a gradient of any float type.
pub(in crate::optim::kernel) fn update_groups<const S: usize>(
    rule: &impl UpdateRule<S>,
    groups: Groups<'_, S>,
    gradient: &FlexTensor,
    noise: Noise,
) {
    match gradient.dtype() {
        DType::F32 => each_group(rule, groups, &Gradient::<f32>::new(gradient), noise),
        DType::F16 => each_group(rule, groups, &Gradient::<f16>::new(gradient), noise),
        DType::BF16 => each_group(rule, groups, &Gradient::<bf16>::new(gradient), noise),
        dtype => panic!("there are no formats for gradients of type {dtype:?}"),
    }
}

/// Updates groups, on several threads if they are many.
pub(in crate::optim::kernel) fn each_group<const S: usize, R: UpdateRule<S>>(
    rule: &R,
    groups: Groups<'_, S>,
    gradient: &impl GradientSource,
    noise: Noise,
) {
    let length = groups.len();
    if length > GRAIN {
        let [left, right] = groups.split_at((length / 2).next_multiple_of(GROUP));
        rayon::join(
            || each_group(rule, left, gradient, noise),
            || each_group(rule, right, gradient, noise),
        );
        return;
    }
    Arch::new().dispatch(RunGroups(rule, groups, gradient, noise));
}

/// The inner loop, compiled for what the processor can do.
struct RunGroups<'a, R, G, const S: usize>(&'a R, Groups<'a, S>, &'a G, Noise);

impl<R: UpdateRule<S>, G: GradientSource, const S: usize> pulp::NullaryFnOnce
    for RunGroups<'_, R, G, S>
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(rule, groups, gradient, noise) = self;
        groups.update(rule, gradient, noise);
    }
}

impl<E: Stored<Computed = f32>> GradientSource for Gradient<'_, E> {
    #[inline(always)]
    fn read(&self, start: usize, into: &mut [f32]) {
        match self {
            Self::Dense(all) => {
                let from = &all[start..start + into.len()];
                for lane in 0..into.len() {
                    into[lane] = from[lane].load();
                }
            }
            Self::Strided { storage, layout } => {
                let mut group = [E::zeroed(); GROUP];
                let group = &mut group[..into.len()];
                gather(storage, layout, start, group);
                for lane in 0..into.len() {
                    into[lane] = group[lane].load();
                }
            }
        }
    }
}
