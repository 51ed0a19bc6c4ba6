use backburn_base::config_struct;

use super::rule::{Number, UpdateRule};
use crate::error::OptimError;

config_struct! {
    /// An average of the weights over the steps of a training: exponential with a `decay`, or else uniform.
    ///
    /// Pass it to `FusedConfig::with_averaging`. `FusedOptimizer::averaged` returns a model with the average.
    ///
    /// ```
    /// use backburn_optim::WeightAveragingConfig;
    ///
    /// let averaging = WeightAveragingConfig::new().with_decay(Some(0.999)).with_warm_up(true);
    /// ```
    #[derive(Copy, Debug, PartialEq)]
    pub struct WeightAveragingConfig {
        /// Decay of an exponential moving average (EMA), from 0 to below 1. The average starts as the weights at construction. After
        /// each counted update it is `average * decay + weight * (1 - decay)`, in this order. In f32, rounding moves
        /// the average by up to 0.03 % of the weights at a decay of 0.9999, and by up to 0.3 % at 0.99999.
        ///
        /// Without a decay the average is uniform ([stochastic weight averaging](https://arxiv.org/abs/1803.05407), SWA): the mean of
        /// the weights after each counted update. After the first it is the weight, after the `n`th
        /// `average + (weight - average) / n`.
        pub decay (with_decay): Option<f64> = None,
        /// Limits the decay in the `n`th counted update to (1 + n) / (10 + n), so that the average forgets the first weights.
        pub warm_up (with_warm_up): bool = false,
        /// Counts every `every`th update of a parameter.
        pub every (with_every): usize = 1,
        /// Lets `FusedLearner` validate with the average. Checkpoints and the result of the launch have the current weights.
        pub validate (with_validate): bool = false,
    }
}

impl WeightAveragingConfig {
    /// Returns an error if a value is out of range.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), OptimError> {
        let reason = match self.decay {
            Some(decay) if !(0.0..1.0).contains(&decay) => {
                format!("`decay` is {decay}: set it from 0 to below 1, for example to 0.999")
            }
            _ if self.every == 0 => {
                "`every` is 0, so no update would be averaged: set it to 1 or more".to_string()
            }
            _ => return Ok(()),
        };
        Err(OptimError::Averaging { reason })
    }

    /// Returns `true` if the average counts this update. The first update is 1.
    pub(super) fn counts(&self, update: usize) -> bool {
        update.is_multiple_of(self.every)
    }

    /// Returns the formula of this counted update. The first is 1.
    pub(super) fn rule(&self, count: usize) -> AverageRule {
        let Some(decay) = self.decay else {
            return AverageRule::Uniform(count);
        };
        let count = count as f64;
        let warm = (1.0 + count) / (10.0 + count);
        let decay = if self.warm_up { decay.min(warm) } else { decay };
        AverageRule::Exponential(decay)
    }
}

/// A rule that updates an average, passed as the parameter, with a value, passed as the gradient.
#[derive(Clone, Copy, Debug)]
pub(super) enum AverageRule {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the docs.
    #[test]
    fn average_in_f32_is_moved_by_rounding() {
        for (decay, steps, most) in [(0.9999, 200_000, 3e-4), (0.99999, 2_000_000, 3e-3)] {
            let rule = AverageRule::Exponential(decay);
            let error_at = |weight: f32| {
                let (mut average, mut exact) = (weight, f64::from(weight));
                for step in 0..steps {
                    let value = weight * (1.0 + 0.01 * (step as f32 * 0.7).sin());
                    (average, []) = rule.update(average, value, []);
                    exact = exact * decay + f64::from(value) * (1.0 - decay);
                }
                (f64::from(average) / exact - 1.0).abs()
            };
            let errors = [1.0, 0.7, 0.3].map(error_at);
            let found = errors.into_iter().fold(0.0, f64::max);
            assert!((found / most - 1.0).abs() < 0.1, "{decay}: {errors:?}");
        }
    }
}
