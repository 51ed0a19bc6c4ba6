use super::{Momentum, Number, UpdateRule};

/// The hyperparameters of a step of SGD.
#[derive(Clone, Debug)]
pub(crate) struct Sgd {
    pub(crate) learning_rate: f64,
    /// L2 penalty.
    pub(crate) penalty: Option<f64>,
    pub(crate) momentum: Momentum,
}

impl Sgd {
    /// The gradient with the L2 penalty.
    #[inline(always)]
    fn gradient<N: Number>(&self, parameter: N, gradient: N) -> N {
        match self.penalty {
            Some(penalty) => parameter * N::of(penalty) + gradient,
            None => gradient,
        }
    }
}

/// Without momentum.
impl UpdateRule<0> for Sgd {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        let gradient = self.gradient(parameter, gradient);
        (parameter - gradient * N::of(self.learning_rate), [])
    }
}

impl UpdateRule<1> for Sgd {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, velocity: [N; 1]) -> (N, [N; 1]) {
        let gradient = self.gradient(parameter, gradient);
        let (direction, velocity) = self.momentum.update(parameter, gradient, velocity);
        let parameter = parameter - direction * N::of(self.learning_rate);
        (parameter, velocity)
    }
}
