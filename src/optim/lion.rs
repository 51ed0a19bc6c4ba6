use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::ModuleOptimizer;

use super::element_wise::{ElementState, ElementWise};
use super::format::{StateFormat, WeightFormat};
use super::kernel::Rule;
use super::rule::{self, Step};
use super::ruled::Ruled;
use super::with_clipping;

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
    /// How the momentum is kept.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// What weights in bf16 have beside their bits.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Lion in a single pass.
///
/// Computes what Burn's [`Lion`](burn::optim::Lion) does:
/// [Chen et al., 2023](https://arxiv.org/abs/2302.06675).
pub type Lion = Ruled<LionConfig>;

impl LionConfig {
    /// The bare optimizer, for a parameter group. Gradient clipping is not part of it.
    pub fn build(&self) -> Lion {
        Ruled::new(self.clone())
            .with_state_format(self.state_format)
            .with_weight_format(self.weight_format)
    }

    /// The optimizer of a whole module, with gradient clipping.
    pub fn init(&self) -> ModuleOptimizer {
        with_clipping(self.build(), self.grad_clipping.as_ref())
    }
}

impl ElementWise for LionConfig {
    const STATES: &'static [ElementState] = &[ElementState::signed("momentum")];
    const TIME: Option<&'static str> = None;

    /// Hyperparameters are worked out in the precision in which Burn does.
    fn rule(&self, step: Step) -> Rule {
        let rule = rule::Lion {
            beta_1: self.beta_1.into(),
            beta_2: self.beta_2.into(),
            rest_1: (1.0 - self.beta_1).into(),
            rest_2: (1.0 - self.beta_2).into(),
            learning_rate: step.learning_rate,
            decay: 1.0 - step.learning_rate * f64::from(self.weight_decay),
        };
        Rule::new::<1>(rule)
    }
}
