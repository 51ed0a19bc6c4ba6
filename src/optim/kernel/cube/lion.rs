use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::Launch;
use super::moments::average;
use crate::optim::rule;

pub(super) fn launch(rule: rule::Lion, launch: &Launch) {
    let options = LionOptionsLaunch::new(
        launch.scalar(rule.beta_1),
        launch.scalar(rule.rest_1),
        launch.scalar(rule.beta_2),
        launch.scalar(rule.rest_2),
        launch.scalar(rule.decay),
        launch.scalar(rule.learning_rate),
    );
    // SAFETY: `Launch` holds tensors of one shape, those written dense and with one owner, and every
    // unit ends before it touches an element that is not there.
    unsafe {
        lion::launch_unchecked(
            &launch.client,
            launch.cube_count.clone(),
            launch.cube_dim,
            launch.address_type,
            launch.vector_size,
            launch.gradient(),
            launch.parameter(),
            launch.state(0),
            options,
            launch.types,
        );
    }
}

#[derive(CubeLaunch, CubeType)]
struct LionOptions {
    beta_1: InputScalar,
    rest_1: InputScalar,
    beta_2: InputScalar,
    rest_2: InputScalar,
    decay: InputScalar,
    learning_rate: InputScalar,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn lion<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut momentum: LinearViewMut<'_, Vector<F, N>>,
    options: LionOptions,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let m = Vector::<C, N>::cast_from(momentum.read(ABSOLUTE_POS));
    let direction = average::<C, N>(m, g, &options.beta_1, &options.rest_1);
    let zero = Vector::<C, N>::zero();
    let negative = select_many(direction.less_than(&zero), Vector::new(C::new(-1.0)), zero);
    let sign = select_many(direction.greater_than(&zero), Vector::one(), negative);
    let m = average::<C, N>(m, g, &options.beta_2, &options.rest_2);
    let p = p * Vector::new(options.decay.get::<C>())
        - sign * Vector::new(options.learning_rate.get::<C>());
    momentum.write(ABSOLUTE_POS, Vector::cast_from(m));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}
