use super::{Number, UpdateRule};

/// Takes an average on to the next value.
#[derive(Clone, Copy, Debug)]
pub enum AverageRule {
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

/// A step of `rule` whose last state is an average of the parameter, which goes on to what the parameter is then.
#[derive(Clone, Debug)]
pub(crate) struct WithAverage<R> {
    pub(crate) rule: R,
    pub(crate) average: AverageRule,
}

macro_rules! averaging {
    ($($states:literal => $more:literal)*) => {
        $(
            impl<R: UpdateRule<$states>> UpdateRule<$more> for WithAverage<R> {
                #[inline(always)]
                fn update<N: Number>(
                    &self,
                    parameter: N,
                    gradient: N,
                    [own @ .., average]: [N; $more],
                ) -> (N, [N; $more]) {
                    let (parameter, own) = self.rule.update(parameter, gradient, own);
                    let (average, []) = self.average.update(average, parameter, []);
                    let mut states = [average; $more];
                    states[..$states].copy_from_slice(&own);
                    (parameter, states)
                }
            }
        )*
    };
}

averaging!(0 => 1 1 => 2 2 => 3);
