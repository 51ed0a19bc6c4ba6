use super::element_wise::ElementState;
use super::rule::{Number, Step};

/// Moving averages of the gradient and of its square.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    beta_1: f64,
    beta_2: f64,
    /// 1 - beta, in f32 as in Burn.
    complement_1: f64,
    complement_2: f64,
}

impl Moments {
    /// The moments, as Burn's adaptive optimizers name them.
    pub(super) const STATES: [ElementState; 3] = [
        ElementState::signed("momentum.moment_1"),
        ElementState::positive("momentum.moment_2"),
        ElementState::maximum("momentum.max_moment_2"),
    ];

    /// Returns the moving averages of a step with these decays.
    pub(super) fn new(step: Step, beta_1: f32, beta_2: f32) -> Self {
        Self {
            beta_1: step.decay(beta_1.into()),
            beta_2: step.decay(beta_2.into()),
            complement_1: (1.0 - beta_1).into(),
            complement_2: (1.0 - beta_2).into(),
        }
    }

    /// Updates both moments, and the maximum of the second (AMSGrad), if there is a third state. Returns the first moment, and
    /// the second or its maximum.
    #[inline(always)]
    pub(super) fn update<N: Number, const S: usize>(
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

/// Returns the reason if this term of the divisor doesn't allow micro-batches: without it an element divides 0 by 0 in a micro-batch
/// that does not use it.
pub(super) fn refusal_of_epsilon(epsilon: f32) -> Option<&'static str> {
    let is_zero = epsilon == 0.0;
    is_zero.then_some("`epsilon` is 0, so an element without a gradient in a micro-batch divides 0 by 0: set it above 0")
}
