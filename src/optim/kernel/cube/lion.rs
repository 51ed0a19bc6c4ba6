use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::kernel::{Updated, VectorRule};
use super::launch::Launch;
use super::moments::average;
use crate::optim::rule;

pub(super) fn launch(rule: rule::Lion, launch: impl Launch) {
    let options = LionOptionsLaunch::new(
        launch.scalar(rule.beta_1),
        launch.scalar(rule.rest_1),
        launch.scalar(rule.beta_2),
        launch.scalar(rule.rest_2),
        launch.scalar(rule.decay),
        launch.scalar(rule.learning_rate),
    );
    launch.start::<Lion>(options);
}

struct Lion;

#[derive(CubeLaunch, CubeType)]
struct LionOptions {
    beta_1: InputScalar,
    rest_1: InputScalar,
    beta_2: InputScalar,
    rest_2: InputScalar,
    decay: InputScalar,
    learning_rate: InputScalar,
}

#[cube]
impl VectorRule for Lion {
    type Options = LionOptions;

    fn update<C: Float, N: Size>(
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
        options: &LionOptions,
    ) -> Updated<C, N> {
        let momentum = *states.index(0);
        let direction = average::<C, N>(momentum, gradient, &options.beta_1, &options.rest_1);
        let zero = Vector::<C, N>::zero();
        let negative = select_many(direction.less_than(&zero), Vector::new(C::new(-1.0)), zero);
        let sign = select_many(direction.greater_than(&zero), Vector::one(), negative);
        let decayed = parameter * Vector::new(options.decay.get::<C>());
        let parameter = decayed - sign * Vector::new(options.learning_rate.get::<C>());
        let mut states = Sequence::new();
        states.push(average::<C, N>(
            momentum,
            gradient,
            &options.beta_2,
            &options.rest_2,
        ));
        (parameter, states)
    }
}
