use num_traits::Float;

use super::{Moments, UpdateRule, scalar};

/// The hyperparameters of a step of AdamW; if `CAUTIOUS`, it decays only where that does not work
/// against the update.
#[derive(Clone, Copy, Debug)]
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

impl<const CAUTIOUS: bool> AdamW<CAUTIOUS> {
    /// The parameter after the step.
    #[inline(always)]
    fn parameter<F: Float>(&self, parameter: F, moment_1: F, moment_2: F) -> F {
        let corrected_1 = moment_1 / scalar(self.correction_1);
        let corrected_2 = moment_2 / scalar(self.correction_2);
        let delta = corrected_1 / (corrected_2.sqrt() + scalar(self.epsilon));
        let decay = parameter * scalar(self.decay);
        let decayed = if CAUTIOUS {
            let against = (parameter >= F::zero()) != (moment_1 >= F::zero());
            parameter - if against { F::zero() } else { decay }
        } else {
            decay
        };
        decayed - delta * scalar(self.learning_rate)
    }
}

impl<const CAUTIOUS: bool> UpdateRule<2> for AdamW<CAUTIOUS> {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, moments: [F; 2]) -> (F, [F; 2]) {
        let [moment_1, moment_2] = self.moments.update(gradient, moments);
        let parameter = self.parameter(parameter, moment_1, moment_2);
        (parameter, [moment_1, moment_2])
    }
}

/// AMSGrad.
impl<const CAUTIOUS: bool> UpdateRule<3> for AdamW<CAUTIOUS> {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, [a, b, max]: [F; 3]) -> (F, [F; 3]) {
        let [moment_1, moment_2] = self.moments.update(gradient, [a, b]);
        let max = if max < moment_2 { moment_2 } else { max };
        let parameter = self.parameter(parameter, moment_1, max);
        (parameter, [moment_1, moment_2, max])
    }
}
