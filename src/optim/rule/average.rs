use super::{Number, UpdateRule};

/// Takes an average on to the next value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AverageRule {
    /// Exponential, with this decay.
    Exponential(f64),
    /// Uniform, over so many values with this one.
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
