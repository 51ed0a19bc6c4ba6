use burn::config::Config;

use super::format::WeightFormat;
use super::rule::AverageRule;
use crate::error::FusedError;

/// Which average of the weights, for a [`WeightAveragingConfig`].
#[derive(Config, Copy, Debug, PartialEq)]
pub enum WeightAverage {
    /// The exponential moving average (EMA): `decay` times the average, and what is left times the weight.
    Exponential(f64),
    /// The mean of all ([stochastic weight averaging](https://arxiv.org/abs/1803.05407), SWA).
    Uniform,
}

/// An average of the weights over the steps of a training, beside the weights.
///
/// It begins as the weights of the first step that counts, as PyTorch's `AveragedModel` does.
/// [`FusedOptimizer::averaged`](crate::FusedOptimizer::averaged) gives a model of it.
///
/// ```
/// use backburn::{FusedConfig, FusedOptimizer, WeightAverage, WeightAveragingConfig};
/// # use burn::{nn::{Linear, LinearConfig}, optim::AdamWConfig, tensor::{Device, Tensor}};
/// # let device = Device::flex().autodiff();
/// # let model: Linear = LinearConfig::new(2, 1).init(&device);
/// # let x = Tensor::<2>::ones([3, 2], &device);
///
/// let averaging = WeightAveragingConfig::new(WeightAverage::Exponential(0.999)).with_warm_up(true);
/// let config = FusedConfig::new().with_averaging(Some(averaging));
/// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init()).with_config(config);
/// fused.step(1e-3, |model| model.forward(x).mean());
/// let averaged: Linear = fused.averaged(); // an ordinary model
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct WeightAveragingConfig {
    /// Which average.
    pub average: WeightAverage,
    /// Whether the decay of an exponential average rises to its value, so that it forgets the beginning: after `n` weights
    /// it is (1 + n) / (10 + n) at most, as in TensorFlow's `ExponentialMovingAverage`.
    #[config(default = false)]
    pub warm_up: bool,
    /// Every how many updates of a parameter its value counts.
    #[config(default = 1)]
    pub every: usize,
    /// After how many updates of a parameter its value counts for the first time.
    #[config(default = 0)]
    pub start: usize,
    /// Parts of paths: parameters that have one of them in theirs are averaged. Without any, all in training are.
    #[config(default = "Vec::new()")]
    pub parameters: Vec<String>,
    /// How an average is kept: `Plain` in f32 (f64 for parameters in f64), all others in bf16 with what they keep beside it,
    /// where the parameter has 4096 elements or more. Averages move less than a bf16 can tell: `Split24` is right on
    /// average, in three bytes.
    #[config(default = "WeightFormat::Plain")]
    pub format: WeightFormat,
    /// Whether `FusedLearner` validates with the averaged weights.
    #[config(default = false)]
    pub validate: bool,
    /// Whether running statistics are averaged as the weights are, over the steps; else an averaged model has the current ones,
    /// as trainers of diffusion models do.
    #[config(default = false)]
    pub running_statistics: bool,
}

impl WeightAveragingConfig {
    /// Refuses what can't be meant.
    pub(crate) fn check(&self) -> Result<(), FusedError> {
        let reason = match self.average {
            WeightAverage::Exponential(decay) if !(0.0..1.0).contains(&decay) => format!(
                "the decay of an exponential average is {decay}: it must be from 0 to below 1, 0.999 say"
            ),
            _ if self.every == 0 => {
                "an average of every 0th update has no values: set `every` to 1 or more".to_string()
            }
            _ => return Ok(()),
        };
        Err(FusedError::Averaging { reason })
    }

    /// Refuses to average nothing, where parameters of these paths are in training.
    pub(crate) fn check_trained<'a>(
        &self,
        trained: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), FusedError> {
        let is_missing = |part: &&String| !trained.clone().any(|path| path.contains(&***part));
        let reason = match self.parameters.iter().find(is_missing) {
            Some(part) => format!(
                "no parameter in training has `{part}` in its path: correct it in `parameters`, or thaw what it names"
            ),
            None if trained.clone().next().is_none() => {
                "no parameter is in training: thaw one, or leave the average out".to_string()
            }
            None => return Ok(()),
        };
        Err(FusedError::Averaging { reason })
    }

    /// Whether the parameter of this path is averaged.
    pub(crate) fn covers(&self, path: &str) -> bool {
        self.parameters.is_empty() || self.parameters.iter().any(|part| path.contains(part))
    }

    /// Whether the value after so many updates counts.
    pub(super) fn counts(&self, updates: usize) -> bool {
        updates > self.start && (updates - self.start - 1).is_multiple_of(self.every)
    }

    /// What takes an average of so many values on to the next.
    pub(super) fn rule(&self, values: usize) -> AverageRule {
        match self.average {
            WeightAverage::Uniform => AverageRule::Uniform(values + 1),
            WeightAverage::Exponential(decay) => {
                let values = values as f64;
                let warm = (1.0 + values) / (10.0 + values);
                let decay = if self.warm_up { decay.min(warm) } else { decay };
                AverageRule::Exponential(decay)
            }
        }
    }
}
