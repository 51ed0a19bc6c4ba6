use super::{Number, UpdateRule};

/// Takes an update that is known already, after a decoupled weight decay.
#[derive(Clone, Debug)]
pub(crate) struct Decayed {
    /// The parameter is multiplied by this.
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
