use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{
    self, AdamState, AdaptiveMomentumState, LearningRate, ModuleOptimizer, Optimizer,
};
use burn::tensor::{Device, Tensor};

use super::in_state::{AccumulateInState, MicroBatch};
use super::kernel;
use super::rule::{self, Moments, Rule};
use super::with_clipping;

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
    /// Added to the root of the second moment, for numerical stability.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Whether to use the AMSGrad variant.
    #[config(default = false)]
    amsgrad: bool,
    /// L2 penalty, added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clipping of each parameter's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Adam in a single pass.
///
/// Computes what Burn's [`Adam`](burn::optim::Adam) does:
/// [Kingma and Ba, 2014](https://arxiv.org/abs/1412.6980), with the AMSGrad variant of
/// [Reddi et al., 2018](https://openreview.net/forum?id=ryQu7f-RZ).
#[derive(Clone)]
pub struct Adam {
    config: AdamConfig,
    /// For backends without a kernel.
    stock: optim::Adam,
}

impl AdamConfig {
    /// The bare optimizer, for a parameter group. Gradient clipping is not part of it.
    pub fn build(&self) -> Adam {
        let stock = optim::AdamConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_epsilon(self.epsilon)
            .with_amsgrad(self.amsgrad)
            .with_weight_decay(self.weight_decay.clone());
        Adam {
            config: self.clone(),
            stock: stock.build(),
        }
    }

    /// The optimizer of a whole module, with gradient clipping.
    pub fn init(&self) -> ModuleOptimizer {
        with_clipping(self.build(), self.grad_clipping.as_ref())
    }
}

impl Optimizer for Adam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamState<D>>,
    ) -> (Tensor<D>, Option<AdamState<D>>) {
        if !kernel::covers(&parameter) {
            return self.stock.step(lr, parameter, gradient, state);
        }
        let state = state.map(|state| state.momentum);
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = Rule::Adam(self.rule(lr, time));
        let (parameter, momentum) =
            update_moments(rule, self.config.amsgrad, parameter, gradient, state);
        (parameter, Some(AdamState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamState<D>, device: &Device) -> AdamState<D> {
        <optim::Adam as Optimizer>::to_device(state, device)
    }
}

impl Adam {
    /// The hyperparameters of a step, worked out in the precision in which Burn does.
    fn rule(&self, learning_rate: LearningRate, time: usize) -> rule::Adam {
        let config = &self.config;
        let time = time as i32;
        let root = (1.0 - config.beta_2.powi(time)).sqrt();
        let correction = root / (1.0 - config.beta_1.powi(time));
        rule::Adam {
            moments: Moments::new(config.beta_1, config.beta_2),
            learning_rate,
            penalty: config
                .weight_decay
                .as_ref()
                .map(|decay| decay.penalty.into()),
            correction: correction.into(),
            epsilon: (config.epsilon * root).into(),
        }
    }
}

impl AccumulateInState for Adam {
    fn refusal(&self) -> Option<&'static str> {
        let decays = self.config.weight_decay.is_some();
        decays.then_some("the L2 penalty of `Adam` is part of the gradient: use `AdamW`")
    }

    fn step_micro_batch<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamState<D>>,
        batch: MicroBatch,
    ) -> (Tensor<D>, AdamState<D>) {
        let state = state.map(|state| batch.at_same_time(state.momentum));
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let mut rule = self.rule(batch.learning_rate(lr), time);
        rule.moments = batch.moments(rule.moments);
        let amsgrad = self.config.amsgrad;
        let (parameter, momentum) =
            update_moments(Rule::Adam(rule), amsgrad, parameter, gradient, state);
        (parameter, AdamState { momentum })
    }
}

/// Updates a parameter and the moments of its gradient, with their maximum if `amsgrad`.
pub(super) fn update_moments<const D: usize>(
    rule: Rule,
    amsgrad: bool,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<AdaptiveMomentumState<D>>,
) -> (Tensor<D>, AdaptiveMomentumState<D>) {
    let mut state = state.unwrap_or_else(|| AdaptiveMomentumState {
        time: 0,
        moment_1: kernel::blank(&parameter),
        moment_2: kernel::blank(&parameter),
        max_moment_2: None,
    });
    state.time += 1;
    let AdaptiveMomentumState {
        time,
        moment_1,
        moment_2,
        max_moment_2,
    } = state;

    if amsgrad {
        // Without one yet, the maximum is the second moment of this step.
        let max = max_moment_2.unwrap_or_else(|| parameter.full_like(f32::NEG_INFINITY));
        let (parameter, [moment_1, moment_2, max]) =
            kernel::update(rule, parameter, gradient, [moment_1, moment_2, max]);
        let state = AdaptiveMomentumState {
            time,
            moment_1,
            moment_2,
            max_moment_2: Some(max),
        };
        return (parameter, state);
    }
    let (parameter, [moment_1, moment_2]) =
        kernel::update(rule, parameter, gradient, [moment_1, moment_2]);
    let state = AdaptiveMomentumState {
        time,
        moment_1,
        moment_2,
        // Burn keeps what a record brought along.
        max_moment_2,
    };
    (parameter, state)
}
