use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::kernel::{Updated, VectorRule};
use super::launch::Launch;
use super::moments::{Moments, Penalty, launched, launched_penalty};
use crate::optim::rule;

pub(super) fn launch(rule: rule::Adam, launch: impl Launch) {
    let options = AdamOptionsLaunch::new(
        launched(rule.moments, &launch),
        launched_penalty(rule.penalty, &launch),
        launch.scalar(rule.correction),
        launch.scalar(rule.epsilon),
        launch.scalar(rule.learning_rate),
    );
    launch.start::<Adam>(options);
}

struct Adam;

#[derive(CubeLaunch, CubeType)]
struct AdamOptions {
    moments: Moments,
    penalty: Penalty,
    correction: InputScalar,
    epsilon: InputScalar,
    learning_rate: InputScalar,
}

#[cube]
impl VectorRule for Adam {
    type Options = AdamOptions;

    fn update<C: Float, N: Size>(
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
        options: &AdamOptions,
    ) -> Updated<C, N> {
        let gradient = options.penalty.add::<C, N>(parameter, gradient);
        let states = options.moments.update::<C, N>(gradient, states);
        let moment_1 = *states.index(0);
        let moment_2 = *states.index(comptime!(states.len() - 1));
        let root = Vector::sqrt(moment_2) + Vector::new(options.epsilon.get::<C>());
        let delta = moment_1 * Vector::new(options.correction.get::<C>()) / root;
        let parameter = parameter - delta * Vector::new(options.learning_rate.get::<C>());
        (parameter, states)
    }
}
