use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::Launch;
use super::moments::{Moments, average, moments};
use crate::optim::rule;

pub(super) fn launch<const CAUTIOUS: bool>(rule: rule::AdamW<CAUTIOUS>, launch: &Launch) {
    let options = AdamWOptionsLaunch::new(
        moments(rule.moments, launch),
        launch.scalar(rule.decay),
        launch.scalar(rule.correction_1),
        launch.scalar(rule.correction_2),
        launch.scalar(rule.epsilon),
        launch.scalar(rule.learning_rate),
    );
    // SAFETY: `Launch` holds tensors of one shape, those written dense and with one owner, and every
    // unit ends before it touches an element that is not there.
    unsafe {
        match launch.states() {
            2 => adamw::launch_unchecked(
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
                CAUTIOUS,
                launch.types,
            ),
            _ => adamw_amsgrad::launch_unchecked(
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
                CAUTIOUS,
                launch.types,
            ),
        }
    }
}

#[derive(CubeLaunch, CubeType)]
struct AdamWOptions {
    moments: Moments,
    /// A factor, or a rate if cautious.
    decay: InputScalar,
    correction_1: InputScalar,
    correction_2: InputScalar,
    epsilon: InputScalar,
    learning_rate: InputScalar,
}

/// The parameter after a step of AdamW.
#[cube]
fn adamw_parameter<C: Float, N: Size>(
    parameter: Vector<C, N>,
    moment_1: Vector<C, N>,
    moment_2: Vector<C, N>,
    options: &AdamWOptions,
    #[comptime] cautious: bool,
) -> Vector<C, N> {
    let corrected_1 = moment_1 / Vector::new(options.correction_1.get::<C>());
    let corrected_2 = moment_2 / Vector::new(options.correction_2.get::<C>());
    let root = Vector::sqrt(corrected_2) + Vector::new(options.epsilon.get::<C>());
    let delta = corrected_1 / root;
    let decay = parameter * Vector::new(options.decay.get::<C>());
    let decayed = if comptime!(cautious) {
        let zero = Vector::<C, N>::zero();
        // Where both or neither are negative.
        let p = select_many(
            parameter.less_than(&zero),
            Vector::new(C::new(-1.0)),
            Vector::one(),
        );
        let m = select_many(
            moment_1.less_than(&zero),
            Vector::new(C::new(-1.0)),
            Vector::one(),
        );
        parameter - select_many((p * m).less_than(&zero), zero, decay)
    } else {
        decay
    };
    decayed - delta * Vector::new(options.learning_rate.get::<C>())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adamw<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut moment_1: LinearViewMut<'_, Vector<F, N>>,
    mut moment_2: LinearViewMut<'_, Vector<F, N>>,
    options: AdamWOptions,
    #[comptime] cautious: bool,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let m = Vector::<C, N>::cast_from(moment_1.read(ABSOLUTE_POS));
    let v = Vector::<C, N>::cast_from(moment_2.read(ABSOLUTE_POS));
    let m = average::<C, N>(m, g, &options.moments.beta_1, &options.moments.rest_1);
    let v = average::<C, N>(v, g * g, &options.moments.beta_2, &options.moments.rest_2);
    let p = adamw_parameter::<C, N>(p, m, v, &options, cautious);
    moment_1.write(ABSOLUTE_POS, Vector::cast_from(m));
    moment_2.write(ABSOLUTE_POS, Vector::cast_from(v));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adamw_amsgrad<F: Float, C: Float, N: Size>(
    gradient: LinearView<'_, Vector<F, N>>,
    mut parameter: LinearViewMut<'_, Vector<F, N>>,
    mut moment_1: LinearViewMut<'_, Vector<F, N>>,
    mut moment_2: LinearViewMut<'_, Vector<F, N>>,
    mut max_moment_2: LinearViewMut<'_, Vector<F, N>>,
    options: AdamWOptions,
    #[comptime] cautious: bool,
    #[define(F, C)] _types: [ElemType; 2],
) {
    if !parameter.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let p = Vector::<C, N>::cast_from(parameter.read(ABSOLUTE_POS));
    let g = Vector::<C, N>::cast_from(gradient.read(ABSOLUTE_POS));
    let m = Vector::<C, N>::cast_from(moment_1.read(ABSOLUTE_POS));
    let v = Vector::<C, N>::cast_from(moment_2.read(ABSOLUTE_POS));
    let max = Vector::<C, N>::cast_from(max_moment_2.read(ABSOLUTE_POS));
    let m = average::<C, N>(m, g, &options.moments.beta_1, &options.moments.rest_1);
    let v = average::<C, N>(v, g * g, &options.moments.beta_2, &options.moments.rest_2);
    let max = select_many(max.less_than(&v), v, max);
    let p = adamw_parameter::<C, N>(p, m, max, &options, cautious);
    moment_1.write(ABSOLUTE_POS, Vector::cast_from(m));
    moment_2.write(ABSOLUTE_POS, Vector::cast_from(v));
    max_moment_2.write(ABSOLUTE_POS, Vector::cast_from(max));
    parameter.write(ABSOLUTE_POS, Vector::cast_from(p));
}
