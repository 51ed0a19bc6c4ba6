use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;

use super::element_wise::{AccumulateInState, ElementState, ElementWise};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::rule::{self, Momentum, Rule, Step};

/// Configuration of [`Sgd`]: the fields and defaults of Burn's
/// [`SgdConfig`](burn::optim::SgdConfig).
#[derive(Config, Debug)]
pub struct SgdConfig {
    /// L2 penalty, added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Momentum, with dampening and Nesterov's variant.
    momentum: Option<MomentumConfig>,
    /// Format of the velocity.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    gradient_clipping: Option<GradientClippingConfig>,
}

/// Stochastic gradient descent in a single pass.
///
/// Computes what Burn's [`Sgd`](burn::optim::Sgd) does, with momentum as in
/// [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html).
pub type Sgd = ElementWiseOptimizer<SgdConfig>;

/// Burn stores the velocity in a nested state of the momentum.
pub(super) const VELOCITY: ElementState = ElementState::signed("momentum.velocity");

element_wise_config!(SgdConfig, gradient_clipping);

impl ElementWise for SgdConfig {
    const STATES: &'static [ElementState] = &[VELOCITY.optional()];
    const TIME: Option<&'static str> = None;

    /// Computes hyperparameters in the same precision as Burn.
    fn rule(&self, step: Step) -> Rule {
        let momentum = self.momentum.clone().unwrap_or_else(MomentumConfig::new);
        let penalty = self.weight_decay.as_ref().filter(|_| !step.adds);
        let rule = rule::Sgd {
            learning_rate: step.learning_rate,
            penalty: penalty.map(|decay| decay.penalty.into()),
            momentum: Momentum::new(step, &momentum),
        };
        match self.momentum {
            Some(_) => Rule::built_in::<1>(rule),
            None => Rule::built_in::<0>(rule),
        }
    }
}

impl AccumulateInState for SgdConfig {
    fn refusal(&self) -> Option<&'static str> {
        match &self.momentum {
            None => Some("`Sgd` without momentum has no state: set `with_momentum`"),
            Some(momentum) => momentum
                .nesterov
                .then_some("Nesterov's momentum needs the gradient of the whole batch"),
        }
    }
}
