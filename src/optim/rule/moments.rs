use super::{Number, Step};

/// Moving averages of the gradient and of its square.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as Burn has it.
    pub(crate) rest_1: f64,
    pub(crate) rest_2: f64,
}

impl Moments {
    pub(crate) fn new(step: Step, beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: step.decay(beta_1.into()),
            beta_2: step.decay(beta_2.into()),
            rest_1: (1.0 - beta_1).into(),
            rest_2: (1.0 - beta_2).into(),
        }
    }

    #[inline(always)]
    pub(crate) fn update<N: Number>(&self, gradient: N, [moment_1, moment_2]: [N; 2]) -> [N; 2] {
        let square = gradient * gradient;
        [
            moment_1 * N::of(self.beta_1) + gradient * N::of(self.rest_1),
            moment_2 * N::of(self.beta_2) + square * N::of(self.rest_2),
        ]
    }
}
