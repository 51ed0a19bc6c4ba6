use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;

use super::element_wise::{AccumulateInState, ElementState, ElementWise, refusal_of_clipping};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::moments::{Moments, refusal_of_epsilon};
use super::rule::{Number, Rule, Step, UpdateRule, penalized};

/// Configuration of [`Adam`]: the fields and defaults of Burn's
/// [`AdamConfig`](burn::optim::AdamConfig).
#[derive(Config, Debug)]
pub struct AdamConfig {
    /// Decay of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Term added to the root of the second moment, for numerical stability.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Enables the AMSGrad variant.
    #[config(default = false)]
    amsgrad: bool,
    /// L2 penalty, added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Format of the moments. The maximum of AMSGrad, and the second moment stored with it, always have `Full` format.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// Format of weights in bf16, which sets their extra precision.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
    /// Clipping of each parameter's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Adam in a single pass.
///
/// Computes what Burn's [`Adam`](burn::optim::Adam) does:
/// [Kingma and Ba, 2014](https://arxiv.org/abs/1412.6980), with the AMSGrad variant of
/// [Reddi et al., 2018](https://openreview.net/forum?id=ryQu7f-RZ).
pub type Adam = ElementWiseOptimizer<AdamConfig>;

element_wise_config!(AdamConfig, grad_clipping);

impl ElementWise for AdamConfig {
    const STATES: &'static [ElementState] = &Moments::STATES;
    const TIME: Option<&'static str> = Some("momentum.time");

    /// Computes hyperparameters in the same precision as Burn.
    fn rule(&self, step: Step) -> Rule {
        let root = (1.0 - self.beta_2.powi(step.time)).sqrt();
        let correction = root / (1.0 - self.beta_1.powi(step.time));
        let penalty = self.weight_decay.as_ref();
        let rule = AdamRule {
            moments: Moments::new(step, self.beta_1, self.beta_2),
            learning_rate: step.learning_rate,
            penalty: penalty.map(|decay| decay.penalty.into()),
            correction: correction.into(),
            epsilon: (self.epsilon * root).into(),
        };
        if self.amsgrad {
            Rule::built_in::<3>(rule)
        } else {
            Rule::built_in::<2>(rule)
        }
    }
}

impl AccumulateInState for AdamConfig {
    fn refusal(&self) -> Option<&'static str> {
        let decays = self.weight_decay.is_some();
        let decays =
            decays.then_some("the L2 penalty of `Adam` is part of the gradient: use `AdamW`");
        decays
            .or(refusal_of_epsilon(self.epsilon))
            .or(refusal_of_clipping(&self.grad_clipping))
    }
}

/// The hyperparameters of a step of Adam, for gradient g, moments m and v, and parameter θ:
///
/// ```text
/// g ← g + λ θ
/// m ← β₁ m + (1 - β₁) g
/// v ← β₂ v + (1 - β₂) g²
/// θ ← θ - η √(1 - β₂ᵗ) / (1 - β₁ᵗ) m / (√v + √(1 - β₂ᵗ) ε)
/// ```
#[derive(Clone, Debug)]
struct AdamRule {
    moments: Moments,
    learning_rate: f64,
    /// L2 penalty.
    penalty: Option<f64>,
    /// Correction of the bias of both moments.
    correction: f64,
    epsilon: f64,
}

impl<const S: usize> UpdateRule<S> for AdamRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, mut states: [N; S]) -> (N, [N; S]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        let [moment_1, moment_2] = self.moments.update(gradient, &mut states);
        let delta = moment_1 * N::of(self.correction) / (moment_2.sqrt() + N::of(self.epsilon));
        (parameter - delta * N::of(self.learning_rate), states)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::optim as stock;

    use super::*;
    use crate::stock::assert_equal_steps;

    #[test]
    fn adam_equals_that_of_burn() {
        assert_equal_steps(stock::AdamConfig::new().init(), AdamConfig::new().init());
        assert_equal_steps(
            stock::AdamConfig::new()
                .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
                .init(),
            AdamConfig::new()
                .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
                .init(),
        );
        assert_equal_steps(
            stock::AdamConfig::new().with_amsgrad(true).init(),
            AdamConfig::new().with_amsgrad(true).init(),
        );
    }
}
