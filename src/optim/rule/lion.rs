use num_traits::Float;

use super::{UpdateRule, scalar};

/// The hyperparameters of a step of Lion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lion {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as Burn has it.
    pub(crate) rest_1: f64,
    pub(crate) rest_2: f64,
    pub(crate) learning_rate: f64,
    /// The parameter is multiplied by this.
    pub(crate) decay: f64,
}

impl UpdateRule<1> for Lion {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, [momentum]: [F; 1]) -> (F, [F; 1]) {
        let direction = momentum * scalar(self.beta_1) + gradient * scalar(self.rest_1);
        // Zero has no sign, and neither has what is no number.
        let sign = if direction > F::zero() {
            F::one()
        } else if direction < F::zero() {
            -F::one()
        } else {
            F::zero()
        };
        let momentum = momentum * scalar(self.beta_2) + gradient * scalar(self.rest_2);
        let parameter = parameter * scalar(self.decay) - sign * scalar(self.learning_rate);
        (parameter, [momentum])
    }
}
