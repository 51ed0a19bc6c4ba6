use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::kernel::{Updated, VectorRule};
use super::launch::Launch;
use super::moments::{Moments, launched};
use crate::optim::rule;

pub(super) fn launch<const CAUTIOUS: bool>(rule: rule::AdamW<CAUTIOUS>, launch: impl Launch) {
    let options = AdamWOptionsLaunch::new(
        launched(rule.moments, &launch),
        launch.scalar(rule.decay),
        launch.scalar(rule.correction_1),
        launch.scalar(rule.correction_2),
        launch.scalar(rule.epsilon),
        launch.scalar(rule.learning_rate),
        CAUTIOUS,
    );
    launch.start::<AdamW>(options);
}

struct AdamW;

#[derive(CubeLaunch, CubeType)]
struct AdamWOptions {
    moments: Moments,
    /// A factor, or a rate if cautious.
    decay: InputScalar,
    correction_1: InputScalar,
    correction_2: InputScalar,
    epsilon: InputScalar,
    learning_rate: InputScalar,
    #[cube(comptime)]
    cautious: bool,
}

#[cube]
impl VectorRule for AdamW {
    type Options = AdamWOptions;

    fn update<C: Float, N: Size>(
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
        options: &AdamWOptions,
    ) -> Updated<C, N> {
        let states = options.moments.update::<C, N>(gradient, states);
        let moment_1 = *states.index(0);
        let moment_2 = *states.index(comptime!(states.len() - 1));
        let corrected_1 = moment_1 / Vector::new(options.correction_1.get::<C>());
        let corrected_2 = moment_2 / Vector::new(options.correction_2.get::<C>());
        let root = Vector::sqrt(corrected_2) + Vector::new(options.epsilon.get::<C>());
        let delta = corrected_1 / root;
        let decay = parameter * Vector::new(options.decay.get::<C>());
        let decayed = if comptime!(options.cautious) {
            let zero = Vector::<C, N>::zero();
            // Where both or neither are negative.
            let p = sign_bit::<C, N>(parameter);
            let m = sign_bit::<C, N>(moment_1);
            parameter - select_many((p * m).less_than(&zero), zero, decay)
        } else {
            decay
        };
        let parameter = decayed - delta * Vector::new(options.learning_rate.get::<C>());
        (parameter, states)
    }
}

/// -1 where `vector` is negative, else 1.
#[cube]
fn sign_bit<C: Float, N: Size>(vector: Vector<C, N>) -> Vector<C, N> {
    let negative = vector.less_than(&Vector::<C, N>::zero());
    select_many(negative, Vector::new(C::new(-1.0)), Vector::one())
}
