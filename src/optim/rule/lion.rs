use super::{Number, UpdateRule};

/// The hyperparameters of a step of Lion.
#[derive(Clone, Debug)]
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
    fn update<N: Number>(&self, parameter: N, gradient: N, [momentum]: [N; 1]) -> (N, [N; 1]) {
        let direction = momentum * N::of(self.beta_1) + gradient * N::of(self.rest_1);
        let momentum = momentum * N::of(self.beta_2) + gradient * N::of(self.rest_2);
        let parameter =
            parameter * N::of(self.decay) - direction.sign() * N::of(self.learning_rate);
        (parameter, [momentum])
    }
}
