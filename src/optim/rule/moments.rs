use super::{Number, Step};

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
