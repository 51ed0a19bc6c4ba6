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

impl<const S: usize> UpdateRule<S> for Adam {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let gradient = match self.penalty {
            Some(penalty) => parameter * N::of(penalty) + gradient,
            None => gradient,
        };
        let [moment_1, moment_2] = self.moments.update(gradient, &mut states);
        let delta = moment_1 * N::of(self.correction) / (moment_2.sqrt() + N::of(self.epsilon));
        (parameter - delta * N::of(self.learning_rate), states)
    }
}
