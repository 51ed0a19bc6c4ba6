use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::launch::Launch;
use crate::optim::rule;

pub(super) fn launched(moments: rule::Moments, launch: &impl Launch) -> MomentsLaunch {
    MomentsLaunch::new(
        launch.scalar(moments.beta_1),
        launch.scalar(moments.rest_1),
        launch.scalar(moments.beta_2),
        launch.scalar(moments.rest_2),
    )
}

#[derive(CubeLaunch, CubeType)]
pub(super) struct Moments {
    beta_1: InputScalar,
    rest_1: InputScalar,
    beta_2: InputScalar,
    rest_2: InputScalar,
}

#[cube]
impl Moments {
    /// The moments and, if there is a third state, the maximum of the second (AMSGrad).
    pub(super) fn update<C: Float, N: Size>(
        &self,
        gradient: Vector<C, N>,
        states: &Sequence<Vector<C, N>>,
    ) -> Sequence<Vector<C, N>> {
        let moment_1 = average::<C, N>(*states.index(0), gradient, &self.beta_1, &self.rest_1);
        let square = gradient * gradient;
        let moment_2 = average::<C, N>(*states.index(1), square, &self.beta_2, &self.rest_2);
        let mut updated = Sequence::new();
        updated.push(moment_1);
        updated.push(moment_2);
        if comptime!(states.len() == 3) {
            let max = *states.index(2);
            updated.push(select_many(max.less_than(&moment_2), moment_2, max));
        }
        updated
    }
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

/// An L2 penalty, if there is one.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Penalty {
    rate: InputScalar,
    /// Without it, a parameter that is infinite must not be multiplied by zero.
    #[cube(comptime)]
    is_there: bool,
}

pub(super) fn launched_penalty(penalty: Option<f64>, launch: &impl Launch) -> PenaltyLaunch {
    PenaltyLaunch::new(
        launch.scalar(penalty.unwrap_or_default()),
        penalty.is_some(),
    )
}

#[cube]
impl Penalty {
    /// The gradient with the penalty.
    pub(super) fn add<C: Float, N: Size>(
        &self,
        parameter: Vector<C, N>,
        gradient: Vector<C, N>,
    ) -> Vector<C, N> {
        if comptime!(self.is_there) {
            parameter * Vector::new(self.rate.get::<C>()) + gradient
        } else {
            gradient
        }
    }
}
