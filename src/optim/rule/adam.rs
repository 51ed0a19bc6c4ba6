use num_traits::Float;

use super::{Moments, UpdateRule, scalar};

/// The hyperparameters of a step of Adam.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adam {
    pub(crate) moments: Moments,
    pub(crate) learning_rate: f64,
    /// L2 penalty.
    pub(crate) penalty: Option<f64>,
    /// Corrects the bias of both moments.
    pub(crate) correction: f64,
    pub(crate) epsilon: f64,
}

impl Adam {
    /// The parameter after the step.
    #[inline(always)]
    fn parameter<F: Float>(&self, parameter: F, moment_1: F, moment_2: F) -> F {
        let delta = moment_1 * scalar(self.correction) / (moment_2.sqrt() + scalar(self.epsilon));
        parameter - delta * scalar(self.learning_rate)
    }

    /// The gradient with the L2 penalty.
    #[inline(always)]
    fn gradient<F: Float>(&self, parameter: F, gradient: F) -> F {
        match self.penalty {
            Some(penalty) => parameter * scalar(penalty) + gradient,
            None => gradient,
        }
    }
}

impl UpdateRule<2> for Adam {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, moments: [F; 2]) -> (F, [F; 2]) {
        let gradient = self.gradient(parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, moments);
        let parameter = self.parameter(parameter, moment_1, moment_2);
        (parameter, [moment_1, moment_2])
    }
}

/// AMSGrad.
impl UpdateRule<3> for Adam {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, [a, b, max]: [F; 3]) -> (F, [F; 3]) {
        let gradient = self.gradient(parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, [a, b]);
        let max = if max < moment_2 { moment_2 } else { max };
        let parameter = self.parameter(parameter, moment_1, max);
        (parameter, [moment_1, moment_2, max])
    }
}
