use burn::optim::momentum::MomentumConfig;

use super::{Number, Step, UpdateRule, penalized};

/// The hyperparameters of a step of momentum.
#[derive(Clone, Debug)]
pub(crate) struct Momentum {
    pub(crate) factor: f64,
    /// What a gradient adds to the velocity: the first one all of it.
    pub(crate) rest: f64,
    pub(crate) nesterov: bool,
}

impl Momentum {
    /// Worked out in the precision in which Burn does.
    pub(crate) fn new(step: Step, config: &MomentumConfig) -> Self {
        Self {
            factor: step.decay(f64::from(config.momentum as f32)),
            rest: if step.is_first {
                1.0
            } else {
                1.0 - config.dampening
            },
            nesterov: config.nesterov,
        }
    }
}

/// Takes what is stepped to where the momentum points.
impl UpdateRule<1> for Momentum {
    #[inline(always)]
    fn update<N: Number>(&self, _direction: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let factor = N::of(self.factor);
        let velocity = gradient * N::of(self.rest) + velocity * factor;
        let direction = match self.nesterov {
            true => velocity * factor + gradient,
            false => velocity,
        };
        (direction, [velocity])
    }
}

/// The hyperparameters of a step of SGD.
#[derive(Clone, Debug)]
pub(crate) struct Sgd {
    pub(crate) learning_rate: f64,
    /// L2 penalty.
    pub(crate) penalty: Option<f64>,
    pub(crate) momentum: Momentum,
}

/// Without momentum.
impl UpdateRule<0> for Sgd {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        (parameter - gradient * N::of(self.learning_rate), [])
    }
}

impl UpdateRule<1> for Sgd {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, velocity: [N; 1]) -> (N, [N; 1]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        let (direction, velocity) = self.momentum.update(parameter, gradient, velocity);
        let parameter = parameter - direction * N::of(self.learning_rate);
        (parameter, velocity)
    }
}
