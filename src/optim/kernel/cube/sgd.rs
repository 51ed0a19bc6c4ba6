use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::kernel::{Updated, VectorRule};
use super::launch::Launch;
use super::moments::{Penalty, average, launched_penalty};
use crate::optim::rule;

pub(super) fn launch(rule: rule::Sgd, launch: impl Launch) {
    let options = SgdOptionsLaunch::new(
        launched_penalty(rule.penalty, &launch),
        launch.scalar(rule.momentum),
        launch.scalar(rule.rest),
        launch.scalar(rule.learning_rate),
        rule.nesterov,
    );
    launch.start::<Sgd>(options);
}

struct Sgd;

#[derive(CubeLaunch, CubeType)]
struct SgdOptions {
    penalty: Penalty,
    momentum: InputScalar,
    rest: InputScalar,
    learning_rate: InputScalar,
    #[cube(comptime)]
    nesterov: bool,
}

/// With a velocity, if there is a state.
#[cube]
impl VectorRule for Sgd {
    type Options = SgdOptions;

    fn update<C: Float, N: Size>(
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
        options: &SgdOptions,
    ) -> Updated<C, N> {
        let gradient = options.penalty.add::<C, N>(parameter, gradient);
        let mut updated = Sequence::new();
        let direction = if comptime!(states.len() == 1) {
            let before = *states.index(0);
            let velocity = average::<C, N>(before, gradient, &options.momentum, &options.rest);
            updated.push(velocity);
            if comptime!(options.nesterov) {
                velocity * Vector::new(options.momentum.get::<C>()) + gradient
            } else {
                velocity
            }
        } else {
            gradient
        };
        let parameter = parameter - direction * Vector::new(options.learning_rate.get::<C>());
        (parameter, updated)
    }
}
