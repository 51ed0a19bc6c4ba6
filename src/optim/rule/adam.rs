use super::{Moments, Number, UpdateRule};

/// The hyperparameters of a step of Adam.
#[derive(Clone, Debug)]
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
    fn parameter<N: Number>(&self, parameter: N, moment_1: N, moment_2: N) -> N {
        let delta = moment_1 * N::of(self.correction) / (moment_2.sqrt() + N::of(self.epsilon));
        parameter - delta * N::of(self.learning_rate)
    }

    /// The gradient with the L2 penalty.
    #[inline(always)]
    fn gradient<N: Number>(&self, parameter: N, gradient: N) -> N {
        match self.penalty {
            Some(penalty) => parameter * N::of(penalty) + gradient,
            None => gradient,
        }
    }
}

impl UpdateRule<2> for Adam {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, moments: [N; 2]) -> (N, [N; 2]) {
        let gradient = self.gradient(parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, moments);
        let parameter = self.parameter(parameter, moment_1, moment_2);
        (parameter, [moment_1, moment_2])
    }
}

/// AMSGrad.
impl UpdateRule<3> for Adam {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [a, b, max]: [N; 3]) -> (N, [N; 3]) {
        let gradient = self.gradient(parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, [a, b]);
        let max = max.max(moment_2);
        let parameter = self.parameter(parameter, moment_1, max);
        (parameter, [moment_1, moment_2, max])
    }
}
