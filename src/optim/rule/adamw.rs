use super::{Moments, Number, UpdateRule};

/// The hyperparameters of a step of AdamW; if `CAUTIOUS`, it decays only where that does not work
/// against the update.
#[derive(Clone, Debug)]
pub(crate) struct AdamW<const CAUTIOUS: bool> {
    pub(crate) moments: Moments,
    pub(crate) learning_rate: f64,
    /// What the parameter is multiplied by; if `CAUTIOUS`, the part of it that is taken off.
    pub(crate) decay: f64,
    /// What the moments are divided by to correct their bias.
    pub(crate) correction_1: f64,
    pub(crate) correction_2: f64,
    pub(crate) epsilon: f64,
}

impl<const CAUTIOUS: bool, const S: usize> UpdateRule<S> for AdamW<CAUTIOUS> {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let [moment_1, moment_2] = self.moments.update(gradient, &mut states);
        let corrected_1 = moment_1 / N::of(self.correction_1);
        let corrected_2 = moment_2 / N::of(self.correction_2);
        let delta = corrected_1 / (corrected_2.sqrt() + N::of(self.epsilon));
        let decay = parameter * N::of(self.decay);
        let decayed = if CAUTIOUS {
            let zero = N::of(0.0);
            let if_negative = moment_1.if_less(zero, decay, zero);
            let if_positive = moment_1.if_less(zero, zero, decay);
            parameter - parameter.if_less(zero, if_negative, if_positive)
        } else {
            decay
        };
        (decayed - delta * N::of(self.learning_rate), states)
    }
}
