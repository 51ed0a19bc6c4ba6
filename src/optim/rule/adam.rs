use super::{Number, Step, UpdateRule, penalized};

/// Moving averages of the gradient and of its square.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    /// 1 - beta, in f32 as Burn has it.
    pub(crate) rest_1: f64,
    pub(crate) rest_2: f64,
}

impl Moments {
    pub(crate) fn new(step: Step, beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: step.decay(beta_1.into()),
            beta_2: step.decay(beta_2.into()),
            rest_1: (1.0 - beta_1).into(),
            rest_2: (1.0 - beta_2).into(),
        }
    }

    /// Takes both on, and a third state, the maximum of the second (AMSGrad), if there is one. Returns the first, and the
    /// second or its maximum.
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
        states[0] = states[0] * N::of(self.beta_1) + gradient * N::of(self.rest_1);
        states[1] = states[1] * N::of(self.beta_2) + square * N::of(self.rest_2);
        if S == 3 {
            states[2] = states[2].max(states[1]);
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
    /// Corrects the bias of both moments.
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
