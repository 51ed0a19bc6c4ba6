use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::Launch;
use super::moments::{average, penalized};
use crate::optim::rule;

pub(super) fn launch(rule: rule::Sgd, launch: &Launch) {
    let options = SgdOptionsLaunch::new(
        launch.scalar(rule.penalty.unwrap_or_default()),
        launch.scalar(rule.momentum),
        launch.scalar(rule.rest),
        launch.scalar(rule.learning_rate),
    );
    // SAFETY: `Launch` holds tensors of one shape, those written dense and with one owner, and every
    // unit ends before it touches an element that is not there.
    unsafe {
        match launch.states() {
            0 => sgd::launch_unchecked(
                &launch.client,
                launch.cube_count.clone(),
                launch.cube_dim,
                launch.address_type,
                launch.vector_size,
                launch.gradient(),
                launch.parameter(),
                options,
                launch.types,
            ),
            _ => momentum::launch_unchecked(
                &launch.client,
                launch.cube_count.clone(),
                launch.cube_dim,
                launch.address_type,
                launch.vector_size,
                launch.gradient(),
                launch.parameter(),
                launch.state(0),
                options,
                rule.nesterov,
                launch.types,
            ),
        }
    }
}

#[derive(CubeLaunch, CubeType)]
struct SgdOptions {
    penalty: InputScalar,
    momentum: InputScalar,
    rest: InputScalar,
    learning_rate: InputScalar,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sgd<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    options: SgdOptions,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let g = penalized::<C, N>(p, g, &options.penalty);
    let p = p - g * Vector::new(options.learning_rate.get::<C>());
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn momentum<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut velocity: LinearViewMut<'_, Vector<F, N>>,
    options: SgdOptions,
    #[comptime] nesterov: bool,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let g = penalized::<C, N>(p, g, &options.penalty);
    let v = Vector::<C, N>::cast_from(velocity.read(ABSOLUTE_POS));
    let v = average::<C, N>(v, g, &options.momentum, &options.rest);
    let direction = if comptime!(nesterov) {
        v * Vector::new(options.momentum.get::<C>()) + g
    } else {
        v
    };
    let p = p - direction * Vector::new(options.learning_rate.get::<C>());
    velocity.write(ABSOLUTE_POS, Vector::cast_from(v));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}
