use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;

use super::element_wise::{ElementState, ElementWise};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::rule::{Number, Rule, Step, UpdateRule};

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
        let rule = LionRule {
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

/// The hyperparameters of a step of Lion, for gradient g, momentum m and parameter θ:
///
/// ```text
/// c = β₁ m + (1 - β₁) g
/// m ← β₂ m + (1 - β₂) g
/// θ ← (1 - ηλ) θ - η sign(c)
/// ```
#[derive(Clone, Debug)]
struct LionRule {
    beta_1: f64,
    beta_2: f64,
    /// 1 - beta, in f32 as in Burn.
    complement_1: f64,
    complement_2: f64,
    learning_rate: f64,
    /// Factor of the parameter.
    decay: f64,
}

impl UpdateRule<1> for LionRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, [momentum]: [N; 1]) -> (N, [N; 1]) {
        let direction = momentum * N::of(self.beta_1) + gradient * N::of(self.complement_1);
        let momentum = momentum * N::of(self.beta_2) + gradient * N::of(self.complement_2);
        let parameter =
            parameter * N::of(self.decay) - direction.sign() * N::of(self.learning_rate);
        (parameter, [momentum])
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::optim as stock;

    use super::*;
    use crate::stock::assert_equal_steps;

    #[test]
    fn lion_equals_that_of_burn() {
        assert_equal_steps(stock::LionConfig::new().init(), LionConfig::new().init());
        assert_equal_steps(
            stock::LionConfig::new().with_weight_decay(0.1).init(),
            LionConfig::new().with_weight_decay(0.1).init(),
        );
    }
}
