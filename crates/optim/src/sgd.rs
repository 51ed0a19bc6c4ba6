use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;

use super::element_wise::{AccumulateInState, ElementState, ElementWise, refusal_of_clipping};
use super::element_wise_optimizer::{ElementWiseOptimizer, element_wise_config};
use super::format::{StateFormat, WeightFormat};
use super::rule::{Number, Rule, Step, UpdateRule, penalized};

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
        let rule = SgdRule {
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
        let of_momentum = match &self.momentum {
            None => Some("`Sgd` without momentum has no state: set `with_momentum`"),
            Some(momentum) => momentum
                .nesterov
                .then_some("Nesterov's momentum needs the gradient of the whole batch: switch it off, or accumulate in a buffer"),
        };
        of_momentum.or(refusal_of_clipping(&self.gradient_clipping))
    }
}

/// The hyperparameters of a step of SGD, for gradient g, velocity u and parameter θ:
///
/// ```text
/// g ← g + λ θ
/// u ← μ u + (1 - τ) g
/// θ ← θ - η u
/// ```
#[derive(Clone, Debug)]
struct SgdRule {
    learning_rate: f64,
    /// L2 penalty.
    penalty: Option<f64>,
    momentum: Momentum,
}

/// SGD without momentum.
impl UpdateRule<0> for SgdRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        (parameter - gradient * N::of(self.learning_rate), [])
    }
}

impl UpdateRule<1> for SgdRule {
    #[inline(always)]
    fn update<N: Number>(&self, parameter: N, gradient: N, velocity: [N; 1]) -> (N, [N; 1]) {
        let gradient = penalized(self.penalty, parameter, gradient);
        let (direction, velocity) = self.momentum.update(parameter, gradient, velocity);
        let parameter = parameter - direction * N::of(self.learning_rate);
        (parameter, velocity)
    }
}

/// The hyperparameters of a step of momentum, for gradient g and velocity u. The first velocity is g.
///
/// ```text
/// u ← μ u + (1 - τ) g
/// ```
///
/// The direction is u, or μ u + g with Nesterov's variant.
#[derive(Clone, Debug)]
pub(super) struct Momentum {
    factor: f64,
    /// Factor of a gradient that is added to the velocity: 1 for the first gradient.
    rest: f64,
    nesterov: bool,
}

impl Momentum {
    /// Computes the hyperparameters in the same precision as Burn.
    pub(super) fn new(step: Step, config: &MomentumConfig) -> Self {
        Self {
            factor: step.decay(f64::from(config.momentum as f32)),
            rest: if step.is_first {
                1.0
            } else {
                1.0 - config.dampening
            },
            nesterov: config.nesterov,
        }
    }
}

/// Moves the value in the direction of the momentum.
impl UpdateRule<1> for Momentum {
    #[inline(always)]
    fn update<N: Number>(&self, _direction: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let factor = N::of(self.factor);
        let velocity = gradient * N::of(self.rest) + velocity * factor;
        let direction = match self.nesterov {
            true => velocity * factor + gradient,
            false => velocity,
        };
        (direction, [velocity])
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::optim as stock;

    use super::*;
    use crate::stock::assert_equal_steps;

    #[test]
    fn sgd_equals_that_of_burn() {
        assert_equal_steps(stock::SgdConfig::new().init(), SgdConfig::new().init());
        assert_equal_steps(
            stock::SgdConfig::new()
                .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
                .init(),
            SgdConfig::new()
                .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
                .init(),
        );
        assert_equal_steps(
            stock::SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new()))
                .init(),
            SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new()))
                .init(),
        );
        assert_equal_steps(
            stock::SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
                .init(),
            SgdConfig::new()
                .with_momentum(Some(MomentumConfig::new().with_nesterov(true)))
                .init(),
        );
    }
}
