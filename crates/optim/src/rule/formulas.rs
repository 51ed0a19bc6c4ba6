//! Formulas of the optimizers for one element, in the order in which Burn computes them.

use burn::optim::momentum::MomentumConfig;

use super::{Number, Step, UpdateRule};

/// Returns the gradient with an L2 penalty, if there is one.
#[inline(always)]
fn penalized<N: Number>(penalty: Option<f64>, parameter: N, gradient: N) -> N {
    match penalty {
        Some(penalty) => parameter * N::of(penalty) + gradient,
        None => gradient,
    }
}

/// Moving averages of the gradient and of its square.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as in Burn.
    pub(crate) complement_1: f64,
    pub(crate) complement_2: f64,
}

impl Moments {
    /// Updates both moments, and the maximum of the second (AMSGrad), if there is a third state. Returns the first moment, and
    /// the second or its maximum.
    #[inline(always)]
    pub(crate) fn update<N: Number, const S: usize>(
        &self,
        gradient: N,
        states: &mut [N; S],
    ) -> [N; 2] {
        const {
            assert!(S == 2 || S == 3);
        }
        let square = gradient * gradient;
        states[0] = states[0] * N::of(self.beta_1) + gradient * N::of(self.complement_1);
        states[1] = states[1] * N::of(self.beta_2) + square * N::of(self.complement_2);
        if S == 3 {
            // Before the first step the maximum is negative. Burn takes any first moment, including NaN.
            states[2] = states[2].if_less(N::of(0.0), states[1], states[2].max(states[1]));
        }
        [states[0], states[S - 1]]
    }
}

/// The hyperparameters of a step of Adam.
#[derive(Clone, Debug)]
pub(crate) struct Adam {
    pub(crate) moments: Moments,
    pub(crate) learning_rate: f64,
    /// L2 penalty.
    pub(crate) penalty: Option<f64>,
    /// Correction of the bias of both moments.
    pub(crate) correction: f64,
    pub(crate) epsilon: f64,
}

impl<const S: usize> UpdateRule<S> for Adam {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, &mut states);
        let delta = moment_1 * N::of(self.correction) / (moment_2.sqrt() + N::of(self.epsilon));
        (parameter - delta * N::of(self.learning_rate), states)
    }
}

/// The hyperparameters of a step of AdamW.
#[derive(Clone, Debug)]
pub(crate) struct AdamW {
    pub(crate) moments: Moments,
    pub(crate) learning_rate: f64,
    /// Factor of the parameter; with [`Cautious`], the fraction of it that is subtracted.
    pub(crate) decay: f64,
    /// Divisor of the first moment that corrects its bias.
    pub(crate) correction_1: f64,
    pub(crate) correction_2: f64,
    pub(crate) epsilon: f64,
}

impl AdamW {
    /// Updates the moments. Returns the first, and the change of the parameter by the learning rate.
    #[inline(always)]
    fn delta<N: Number, const S: usize>(&self, gradient: N, states: &mut [N; S]) -> [N; 2] {
        let [moment_1, moment_2] = self.moments.update(gradient, states);
        let corrected_1 = moment_1 / N::of(self.correction_1);
        let corrected_2 = moment_2 / N::of(self.correction_2);
        let delta = corrected_1 / (corrected_2.sqrt() + N::of(self.epsilon));
        [moment_1, delta]
    }
}

impl<const S: usize> UpdateRule<S> for AdamW {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let [_, delta] = self.delta(gradient, &mut states);
        let decayed = parameter * N::of(self.decay);
        (decayed - delta * N::of(self.learning_rate), states)
    }
}

/// AdamW that decays only elements where the decay does not oppose the update.
#[derive(Clone, Debug)]
pub(crate) struct Cautious(pub(crate) AdamW);

impl<const S: usize> UpdateRule<S> for Cautious {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let [moment_1, delta] = self.0.delta(gradient, &mut states);
        let decay = parameter * N::of(self.0.decay);
        let zero = N::of(0.0);
        let if_negative = moment_1.if_less(zero, decay, zero);
        let if_positive = moment_1.if_less(zero, zero, decay);
        let decayed = parameter - parameter.if_less(zero, if_negative, if_positive);
        (decayed - delta * N::of(self.0.learning_rate), states)
    }
}

/// The hyperparameters of a step of momentum.
#[derive(Clone, Debug)]
pub(crate) struct Momentum {
    pub(crate) factor: f64,
    /// Factor of a gradient that is added to the velocity: 1 for the first gradient.
    pub(crate) rest: f64,
    pub(crate) nesterov: bool,
}

impl Momentum {
    /// Computes the hyperparameters in the same precision as Burn.
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

/// Moves the value in the direction of the momentum.
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

/// SGD without momentum.
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

/// The hyperparameters of a step of Lion.
#[derive(Clone, Debug)]
pub(crate) struct Lion {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as in Burn.
    pub(crate) complement_1: f64,
    pub(crate) complement_2: f64,
    pub(crate) learning_rate: f64,
    /// Factor of the parameter.
    pub(crate) decay: f64,
}

impl UpdateRule<1> for Lion {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [momentum]: [N; 1]) -> (N, [N; 1]) {
        let direction = momentum * N::of(self.beta_1) + gradient * N::of(self.complement_1);
        let momentum = momentum * N::of(self.beta_2) + gradient * N::of(self.complement_2);
        let parameter =
            parameter * N::of(self.decay) - direction.sign() * N::of(self.learning_rate);
        (parameter, [momentum])
    }
}

/// A rule that applies an update computed elsewhere, after a decoupled weight decay.
#[derive(Clone, Debug)]
pub(crate) struct Decayed {
    /// Factor of the parameter.
    pub(crate) decay: f64,
    pub(crate) learning_rate: f64,
}

impl UpdateRule<0> for Decayed {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, update: N, []: [N; 0]) -> (N, [N; 0]) {
        let parameter = parameter * N::of(self.decay) - update * N::of(self.learning_rate);
        (parameter, [])
    }
}

/// A rule that updates an average, passed as the parameter, with a value, passed as the gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AverageRule {
    /// Exponential average with this decay.
    Exponential(f64),
    /// Uniform average over this number of values, the new one included.
    Uniform(usize),
}

impl UpdateRule<0> for AverageRule {
    #[inline(always)]
    fn update<N: Number>(&self, average: N, value: N, []: [N; 0]) -> (N, [N; 0]) {
        let average = match *self {
            Self::Exponential(decay) => average * N::of(decay) + value * N::of(1.0 - decay),
            Self::Uniform(values) => average + (value - average) / N::of(values as f64),
        };
        (average, [])
    }
}

/// A rule that sets the parameter to the value passed as the gradient.
#[derive(Clone, Debug)]
pub(crate) struct Set;

impl UpdateRule<0> for Set {
    #[inline(always)]
    fn update<N: Number>(&self, _parameter: N, number: N, []: [N; 0]) -> (N, [N; 0]) {
        (number, [])
    }
}
