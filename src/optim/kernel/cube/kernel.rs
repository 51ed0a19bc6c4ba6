use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

/// How an optimizer updates a vector of elements of a parameter: an
/// [`UpdateRule`](crate::optim::rule::UpdateRule) for a device.
#[cube]
pub(super) trait VectorRule: Send + Sync + 'static {
    /// The hyperparameters of a step.
    type Options: LaunchArg;

    /// Returns the parameter and its states after the step.
    fn update<C: Float, N: Size>(
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
        options: &Self::Options,
    ) -> Updated<C, N>;
}

/// A parameter and its states after a step.
pub(super) type Updated<C, N> = (Vector<C, N>, Sequence<Vector<C, N>>);

/// Every unit reads a vector of elements, updates it and writes it back. They are stored as `F` and
/// computed as `C`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn update<F: Float, C: Float, N: Size, R: VectorRule>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut states: Sequence<LinearViewMut<'static, Vector<F, N>>>,
    options: &R::Options,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let mut before = Sequence::<Vector<C, N>>::new();
    #[unroll]
    for state in 0..states.len() {
        before.push(Vector::cast_from(states.index(state).read(ABSOLUTE_POS)));
    }
    let (p, after) = R::update::<C, N>(p, g, &before, options);
    #[unroll]
    for state in 0..states.len() {
        let value = Vector::cast_from(*after.index(state));
        states.index_mut(state).write(ABSOLUTE_POS, value);
    }
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}
