use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::program;
use crate::rule::Program;

/// Updates a vector of elements in each unit. They are stored as `F` and computed as `C`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn update<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut states: Sequence<LinearViewMut<'static, Vector<F, N>>>,
    numbers: &Sequence<InputScalar>,
    #[comptime] program: Program,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let mut before = Sequence::<Vector<C, N>>::new();
    before.push(Vector::cast_from(parameter.read(ABSOLUTE_POS)));
    before.push(Vector::cast_from(gradient.read(ABSOLUTE_POS)));
    #[unroll]
    for state in 0..states.len() {
        before.push(Vector::cast_from(states.index(state).read(ABSOLUTE_POS)));
    }
    let after = program::run::<C, N>(&before, numbers, program);
    #[unroll]
    for state in 0..states.len() {
        let value = Vector::cast_from(*after.index(comptime!(1 + state)));
        states.index_mut(state).write(ABSOLUTE_POS, value);
    }
    parameter.write(ABSOLUTE_POS, Vector::cast_from(*after.index(0usize)));
}
