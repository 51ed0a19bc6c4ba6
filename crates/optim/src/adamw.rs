use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;

use super::adam::MOMENTS;
use super::element_wise::{AccumulateInState, ElementState, ElementWise};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::rule::{self, Rule, Step};

/// Configuration of [`AdamW`]: the fields and defaults of Burn's
/// [`AdamWConfig`](burn::optim::AdamWConfig).
#[derive(Config, Debug)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Term added to the root of the second moment, for numerical stability.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Decoupled weight decay.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Applies the decay only to elements where it does not oppose the update.
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Enables the AMSGrad variant.
    #[config(default = false)]
    amsgrad: bool,
    /// Format of the moments. The maximum of AMSGrad, and the second moment stored with it, always have `Full` format.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    pub(super) grad_clipping: Option<GradientClippingConfig>,
}

/// AdamW in a single pass.
///
/// Computes what Burn's [`AdamW`](burn::optim::AdamW) does:
/// [Loshchilov and Hutter, 2019](https://arxiv.org/abs/1711.05101), with cautious weight decay
/// ([2025](https://arxiv.org/abs/2510.12402)) and the AMSGrad variant of
/// [Reddi et al., 2018](https://openreview.net/forum?id=ryQu7f-RZ).
pub type AdamW = ElementWiseOptimizer<AdamWConfig>;

element_wise_config!(AdamWConfig, grad_clipping);

impl ElementWise for AdamWConfig {
    const STATES: &'static [ElementState] = &MOMENTS;
    const TIME: Option<&'static str> = Some("momentum.time");

    /// Computes hyperparameters in the same precision as Burn.
    fn rule(&self, step: Step) -> Rule {
        let rate = step.learning_rate * f64::from(self.weight_decay);
        let is_cautious = self.cautious_weight_decay && rate != 0.0;
        let rule = rule::AdamW {
            moments: step.moments(self.beta_1, self.beta_2),
            learning_rate: step.learning_rate,
            decay: if is_cautious { rate } else { 1.0 - rate },
            correction_1: (1.0 - self.beta_1.powi(step.time)).into(),
            correction_2: (1.0 - self.beta_2.powi(step.time)).into(),
            epsilon: self.epsilon.into(),
        };
        match (is_cautious, self.amsgrad) {
            (false, false) => Rule::built_in::<2>(rule),
            (false, true) => Rule::built_in::<3>(rule),
            (true, false) => Rule::built_in::<2>(rule::Cautious(rule)),
            (true, true) => Rule::built_in::<3>(rule::Cautious(rule)),
        }
    }
}

impl AccumulateInState for AdamWConfig {
    fn refusal(&self) -> Option<&'static str> {
        let cautious = self.cautious_weight_decay;
        cautious.then_some("cautious weight decay needs the update of the whole batch")
    }
}
