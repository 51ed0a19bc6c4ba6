use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{self, LearningRate, LionState, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::kernel;
use super::rule::{self, Rule};
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
    /// Clipping of each parameter's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Lion in a single pass.
///
/// Computes what Burn's [`Lion`](burn::optim::Lion) does:
/// [Chen et al., 2023](https://arxiv.org/abs/2302.06675).
#[derive(Clone)]
pub struct Lion {
    config: LionConfig,
    /// For backends without a kernel.
    stock: optim::Lion,
}

impl LionConfig {
    /// The bare optimizer, for a parameter group. Gradient clipping is not part of it.
    pub fn build(&self) -> Lion {
        let stock = optim::LionConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_weight_decay(self.weight_decay);
        Lion {
            config: self.clone(),
            stock: stock.build(),
        }
    }

    /// The optimizer of a whole module, with gradient clipping.
    pub fn init(&self) -> ModuleOptimizer {
        with_clipping(self.build(), self.grad_clipping.as_ref())
    }
}

impl Optimizer for Lion {
    type State<const D: usize> = LionState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        if !kernel::covers(&parameter) {
            return self.stock.step(lr, parameter, gradient, state);
        }
        let momentum = state.map_or_else(|| kernel::blank(&parameter), |state| state.momentum);
        let rule = Rule::Lion(self.rule(lr));
        let (parameter, [momentum]) = kernel::update(rule, parameter, gradient, [momentum]);
        (parameter, Some(LionState { momentum }))
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        <optim::Lion as Optimizer>::to_device(state, device)
    }
}

impl Lion {
    /// The hyperparameters of a step, worked out in the precision in which Burn does.
    fn rule(&self, learning_rate: LearningRate) -> rule::Lion {
        let config = &self.config;
        rule::Lion {
            beta_1: config.beta_1.into(),
            beta_2: config.beta_2.into(),
            rest_1: (1.0 - config.beta_1).into(),
            rest_2: (1.0 - config.beta_2).into(),
            learning_rate,
            decay: 1.0 - learning_rate * f64::from(config.weight_decay),
        }
    }
}
