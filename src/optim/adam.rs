use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{self, AdamState, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::call;
use super::format::{Formats, StateFormat, WeightFormat};
use super::in_state::{AccumulateInState, MicroBatch};
use super::kernel;
use super::moments::{MomentsState, update_moments};
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
    /// How the moments are kept; the maximum of AMSGrad and the second moment beside it are always full.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// What weights in bf16 have beside their bits.
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
    type State<const D: usize> = MomentsState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<MomentsState<D>>,
    ) -> (Tensor<D>, Option<MomentsState<D>>) {
        if let Some(reason) = self.refuses(&parameter, &gradient, state.as_ref()) {
            call::refuse(reason);
            return (parameter, state);
        }
        if !kernel::covers(&parameter) && self.formats().are_plain_for(&parameter) {
            let state = state.map(|state| AdamState {
                momentum: state.into_full(),
            });
            let (parameter, state) = self.stock.step(lr, parameter, gradient, state);
            return (parameter, state.map(|state| state.momentum.into()));
        }
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = Rule::Adam(self.rule(lr, time));
        let amsgrad = self.config.amsgrad;
        let formats = self.formats();
        let (parameter, state) = update_moments(rule, amsgrad, formats, parameter, gradient, state);
        (parameter, Some(state))
    }

    fn to_device<const D: usize>(state: MomentsState<D>, device: &Device) -> MomentsState<D> {
        state.on_device(device)
    }
}

impl Adam {
    fn formats(&self) -> Formats {
        Formats {
            state: self.config.state_format,
            weight: self.config.weight_format,
        }
    }

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
        let decays =
            decays.then_some("the L2 penalty of `Adam` is part of the gradient: use `AdamW`");
        decays.or(self.formats().refusal())
    }

    fn refuses<const D: usize>(
        &self,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        state: Option<&MomentsState<D>>,
    ) -> Option<String> {
        let low_bits = state.and_then(|state| state.low_bits.as_ref());
        let moments = state.into_iter().flat_map(MomentsState::shapes);
        kernel::refusal(self.formats(), parameter, gradient, moments, low_bits)
    }

    fn step_micro_batch<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<MomentsState<D>>,
        batch: MicroBatch,
    ) -> (Tensor<D>, MomentsState<D>) {
        let state = state.map(|state| batch.at_same_time(state));
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let mut rule = self.rule(batch.learning_rate(lr), time);
        rule.moments = batch.moments(rule.moments);
        let amsgrad = self.config.amsgrad;
        let (rule, formats) = (Rule::Adam(rule), self.formats());
        update_moments(rule, amsgrad, formats, parameter, gradient, state)
    }
}
