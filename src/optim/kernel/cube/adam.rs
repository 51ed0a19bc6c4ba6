use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::Launch;
use super::moments::{Moments, average, moments, penalized};
use crate::optim::rule;

pub(super) fn launch(rule: rule::Adam, launch: &Launch) {
    let options = AdamOptionsLaunch::new(
        moments(rule.moments, launch),
        launch.scalar(rule.penalty.unwrap_or_default()),
        launch.scalar(rule.correction),
        launch.scalar(rule.epsilon),
        launch.scalar(rule.learning_rate),
    );
    // SAFETY: `Launch` holds tensors of one shape, those written dense and with one owner, and every
    // unit ends before it touches an element that is not there.
    unsafe {
        match launch.states() {
            2 => adam::launch_unchecked(
                &launch.client,
                launch.cube_count.clone(),
                launch.cube_dim,
                launch.address_type,
                launch.vector_size,
                launch.gradient(),
                launch.parameter(),
                launch.state(0),
                launch.state(1),
                options,
                launch.types,
            ),
            _ => adam_amsgrad::launch_unchecked(
                &launch.client,
                launch.cube_count.clone(),
                launch.cube_dim,
                launch.address_type,
                launch.vector_size,
                launch.gradient(),
                launch.parameter(),
                launch.state(0),
                launch.state(1),
                launch.state(2),
                options,
                launch.types,
            ),
        }
    }
}

#[derive(CubeLaunch, CubeType)]
struct AdamOptions {
    moments: Moments,
    penalty: InputScalar,
    correction: InputScalar,
    epsilon: InputScalar,
    learning_rate: InputScalar,
}

/// The parameter after a step of Adam.
#[cube]
fn adam_parameter<C: Float, N: Size>(
    parameter: Vector<C, N>,
    moment_1: Vector<C, N>,
    moment_2: Vector<C, N>,
    options: &AdamOptions,
) -> Vector<C, N> {
    let root = Vector::sqrt(moment_2) + Vector::new(options.epsilon.get::<C>());
    let delta = moment_1 * Vector::new(options.correction.get::<C>()) / root;
    parameter - delta * Vector::new(options.learning_rate.get::<C>())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adam<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut moment_1: LinearViewMut<'_, Vector<F, N>>,
    mut moment_2: LinearViewMut<'_, Vector<F, N>>,
    options: AdamOptions,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let g = penalized::<C, N>(p, g, &options.penalty);
    let m = Vector::<C, N>::cast_from(moment_1.read(ABSOLUTE_POS));
    let v = Vector::<C, N>::cast_from(moment_2.read(ABSOLUTE_POS));
    let m = average::<C, N>(m, g, &options.moments.beta_1, &options.moments.rest_1);
    let v = average::<C, N>(v, g * g, &options.moments.beta_2, &options.moments.rest_2);
    let p = adam_parameter::<C, N>(p, m, v, &options);
    moment_1.write(ABSOLUTE_POS, Vector::cast_from(m));
    moment_2.write(ABSOLUTE_POS, Vector::cast_from(v));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adam_amsgrad<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut moment_1: LinearViewMut<'_, Vector<F, N>>,
    mut moment_2: LinearViewMut<'_, Vector<F, N>>,
    mut max_moment_2: LinearViewMut<'_, Vector<F, N>>,
    options: AdamOptions,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let g = penalized::<C, N>(p, g, &options.penalty);
    let m = Vector::<C, N>::cast_from(moment_1.read(ABSOLUTE_POS));
    let v = Vector::<C, N>::cast_from(moment_2.read(ABSOLUTE_POS));
    let max = Vector::<C, N>::cast_from(max_moment_2.read(ABSOLUTE_POS));
    let m = average::<C, N>(m, g, &options.moments.beta_1, &options.moments.rest_1);
    let v = average::<C, N>(v, g * g, &options.moments.beta_2, &options.moments.rest_2);
    let max = select_many(max.less_than(&v), v, max);
    let p = adam_parameter::<C, N>(p, m, max, &options);
    moment_1.write(ABSOLUTE_POS, Vector::cast_from(m));
    moment_2.write(ABSOLUTE_POS, Vector::cast_from(v));
    max_moment_2.write(ABSOLUTE_POS, Vector::cast_from(max));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}
