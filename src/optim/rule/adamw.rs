use num_traits::Float;

use super::{Moments, UpdateRule, scalar};

/// The hyperparameters of a step of AdamW.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW {
    pub(crate) moments: Moments,
    pub(crate) learning_rate: f64,
    pub(crate) decay: Decay,
    /// What the moments are divided by to correct their bias.
    pub(crate) correction_1: f64,
    pub(crate) correction_2: f64,
    pub(crate) epsilon: f64,
}

/// Decoupled weight decay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decay {
    None,
    /// The parameter is multiplied by this.
    Factor(f64),
    /// This part of the parameter is taken off where its sign is that of the first moment.
    Cautious(f64),
}

impl AdamW {
    /// The parameter after the step.
    #[inline(always)]
    fn parameter<F: Float>(&self, parameter: F, moment_1: F, moment_2: F) -> F {
        let corrected_1 = moment_1 / scalar(self.correction_1);
        let corrected_2 = moment_2 / scalar(self.correction_2);
        let delta = corrected_1 / (corrected_2.sqrt() + scalar(self.epsilon));
        let decayed = match self.decay {
            Decay::None => parameter,
            Decay::Factor(factor) => parameter * scalar(factor),
            Decay::Cautious(rate) => {
                let against = (parameter >= F::zero()) != (moment_1 >= F::zero());
                let decay = parameter * scalar(rate);
                parameter - if against { F::zero() } else { decay }
            }
        };
        decayed - delta * scalar(self.learning_rate)
    }
}

impl UpdateRule<2> for AdamW {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, moments: [F; 2]) -> (F, [F; 2]) {
        let [moment_1, moment_2] = self.moments.update(gradient, moments);
        let parameter = self.parameter(parameter, moment_1, moment_2);
        (parameter, [moment_1, moment_2])
    }
}

/// AMSGrad.
impl UpdateRule<3> for AdamW {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, [a, b, max]: [F; 3]) -> (F, [F; 3]) {
        let [moment_1, moment_2] = self.moments.update(gradient, [a, b]);
        let max = if max < moment_2 { moment_2 } else { max };
        let parameter = self.parameter(parameter, moment_1, max);
        (parameter, [moment_1, moment_2, max])
    }
}
