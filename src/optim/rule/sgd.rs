use num_traits::Float;

use super::{UpdateRule, scalar};

/// The hyperparameters of a step of SGD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd {
    pub(crate) learning_rate: f64,
    /// L2 penalty.
    pub(crate) penalty: Option<f64>,
    pub(crate) momentum: f64,
    /// What a gradient adds to the velocity: the first one all of it.
    pub(crate) rest: f64,
    pub(crate) nesterov: bool,
}

impl Sgd {
    /// The gradient with the L2 penalty.
    #[inline(always)]
    fn gradient<F: Float>(&self, parameter: F, gradient: F) -> F {
        match self.penalty {
            Some(penalty) => parameter * scalar(penalty) + gradient,
            None => gradient,
        }
    }
}

/// Without momentum.
impl UpdateRule<0> for Sgd {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, []: [F; 0]) -> (F, [F; 0]) {
        let gradient = self.gradient(parameter, gradient);
        (parameter - gradient * scalar(self.learning_rate), [])
    }
}

impl UpdateRule<1> for Sgd {
    #[inline(always)]
    fn update<F: Float>(&self, parameter: F, gradient: F, [velocity]: [F; 1]) -> (F, [F; 1]) {
        let gradient = self.gradient(parameter, gradient);
        let momentum = scalar(self.momentum);
        let velocity = gradient * scalar(self.rest) + velocity * momentum;
        let direction = match self.nesterov {
            true => velocity * momentum + gradient,
            false => velocity,
        };
        let parameter = parameter - direction * scalar(self.learning_rate);
        (parameter, [velocity])
    }
}
