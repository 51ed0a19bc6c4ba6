use num_traits::Float;

use super::scalar;

/// Moving averages of the gradient and of its square.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as Burn has it.
    pub(crate) rest_1: f64,
    pub(crate) rest_2: f64,
}

impl Moments {
    pub(crate) fn new(beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: beta_1.into(),
            beta_2: beta_2.into(),
            rest_1: (1.0 - beta_1).into(),
            rest_2: (1.0 - beta_2).into(),
        }
    }

    /// The same without a decay of what is there: a gradient that is added to those before it.
    pub(crate) fn adding(self) -> Self {
        Self {
            beta_1: 1.0,
            beta_2: 1.0,
            ..self
        }
    }

    #[inline(always)]
    pub(crate) fn update<F: Float>(&self, gradient: F, [moment_1, moment_2]: [F; 2]) -> [F; 2] {
        let square = gradient * gradient;
        [
            moment_1 * scalar(self.beta_1) + gradient * scalar(self.rest_1),
            moment_2 * scalar(self.beta_2) + square * scalar(self.rest_2),
        ]
    }
}
