use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::Launch;
use crate::optim::rule;

pub(super) fn moments(moments: rule::Moments, launch: &Launch) -> MomentsLaunch {
    MomentsLaunch::new(
        launch.scalar(moments.beta_1),
        launch.scalar(moments.rest_1),
        launch.scalar(moments.beta_2),
        launch.scalar(moments.rest_2),
    )
}

#[derive(CubeLaunch, CubeType)]
pub(super) struct Moments {
    pub(super) beta_1: InputScalar,
    pub(super) rest_1: InputScalar,
    pub(super) beta_2: InputScalar,
    pub(super) rest_2: InputScalar,
}

/// A moving average.
#[cube]
pub(super) fn average<C: Float, N: Size>(
    before: Vector<C, N>,
    value: Vector<C, N>,
    beta: &InputScalar,
    rest: &InputScalar,
) -> Vector<C, N> {
    before * Vector::new(beta.get::<C>()) + value * Vector::new(rest.get::<C>())
}

/// The gradient with the L2 penalty.
#[cube]
pub(super) fn penalized<C: Float, N: Size>(
    parameter: Vector<C, N>,
    gradient: Vector<C, N>,
    penalty: &InputScalar,
) -> Vector<C, N> {
    parameter * Vector::new(penalty.get::<C>()) + gradient
}
