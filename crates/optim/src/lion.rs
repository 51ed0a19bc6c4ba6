use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;

use super::element_wise::{ElementState, ElementWise};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::rule::{self, Rule, Step};

/// Configuration of [`Lion`]: the fields and defaults of Burn's
/// [`LionConfig`](burn::optim::LionConfig).
#[derive(Config, Debug)]
pub struct LionConfig {
    /// Weight of the momentum in the direction of the update.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay of the momentum.
    #[config(default = 0.99)]
    beta_2: f32,
    /// Decoupled weight decay.
    #[config(default = 0.0)]
    weight_decay: f32,
    /// Format of the momentum.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Lion in a single pass.
///
/// Computes what Burn's [`Lion`](burn::optim::Lion) does:
/// [Chen et al., 2023](https://arxiv.org/abs/2302.06675).
pub type Lion = ElementWiseOptimizer<LionConfig>;

element_wise_config!(LionConfig, grad_clipping);

impl ElementWise for LionConfig {
    const STATES: &'static [ElementState] = &[ElementState::signed("momentum")];
    const TIME: Option<&'static str> = None;

    /// Computes hyperparameters in the same precision as Burn.
    fn rule(&self, step: Step) -> Rule {
        let rule = rule::Lion {
            beta_1: self.beta_1.into(),
            beta_2: self.beta_2.into(),
            complement_1: (1.0 - self.beta_1).into(),
            complement_2: (1.0 - self.beta_2).into(),
            learning_rate: step.learning_rate,
            decay: 1.0 - step.learning_rate * f64::from(self.weight_decay),
        };
        Rule::built_in::<1>(rule)
    }
}
