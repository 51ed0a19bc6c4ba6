use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::{WeightDecay, WeightDecayConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::in_state::{AccumulateInState, MicroBatch};
use super::kernel;
use super::rule::{self, Rule};
use super::with_clipping;

/// Configuration of [`Sgd`]: the fields and defaults of Burn's
/// [`SgdConfig`](burn::optim::SgdConfig).
#[derive(Config, Debug)]
pub struct SgdConfig {
    /// L2 penalty, added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Momentum, with dampening and Nesterov's variant.
    momentum: Option<MomentumConfig>,
    /// Clipping of each parameter's gradient.
    gradient_clipping: Option<GradientClippingConfig>,
}

/// Stochastic gradient descent in a single pass.
///
/// Computes what Burn's [`Sgd`](burn::optim::Sgd) does, with momentum as in
/// [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html).
#[derive(Clone)]
pub struct Sgd {
    config: SgdConfig,
}

/// State of [`Sgd`]; its record is that of Burn's [`SgdState`](burn::optim::SgdState).
#[derive(Clone, Debug)]
pub struct SgdState<const D: usize> {
    /// The moving sum of the gradients, if there is momentum.
    pub velocity: Option<Tensor<D>>,
}

impl SgdConfig {
    /// The bare optimizer, for a parameter group. Gradient clipping is not part of it.
    pub fn build(&self) -> Sgd {
        Sgd {
            config: self.clone(),
        }
    }

    /// The optimizer of a whole module, with gradient clipping.
    pub fn init(&self) -> ModuleOptimizer {
        with_clipping(self.build(), self.gradient_clipping.as_ref())
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let velocity = state.and_then(|state| state.velocity);
        if !kernel::covers(&parameter) {
            return self.step_by_operations(lr, parameter, gradient, velocity);
        }
        let rule = Rule::Sgd(self.rule(lr, velocity.is_none()));
        if self.config.momentum.is_none() {
            // Burn keeps no velocity that it does not use.
            let (parameter, []) = kernel::update(rule, parameter, gradient, []);
            return (parameter, Some(SgdState { velocity }));
        }
        let velocity = velocity.unwrap_or_else(|| kernel::blank(&parameter));
        let (parameter, [velocity]) = kernel::update(rule, parameter, gradient, [velocity]);
        let velocity = Some(velocity);
        (parameter, Some(SgdState { velocity }))
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        SgdState {
            velocity: state.velocity.map(|velocity| velocity.to_device(device)),
        }
    }
}

impl AccumulateInState for Sgd {
    fn refusal(&self) -> Option<&'static str> {
        match &self.config.momentum {
            None => Some("`Sgd` without momentum has no state: set `with_momentum`"),
            Some(momentum) => momentum
                .nesterov
                .then_some("Nesterov's momentum looks at the whole gradient"),
        }
    }

    fn step_micro_batch<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
        batch: MicroBatch,
    ) -> (Tensor<D>, SgdState<D>) {
        let mut rule = self.rule(batch.learning_rate(lr), batch.fresh);
        if !batch.first {
            (rule.momentum, rule.penalty) = (1.0, None);
        }
        let velocity = state.and_then(|state| state.velocity);
        let velocity = velocity.unwrap_or_else(|| kernel::blank(&parameter));
        let (parameter, [velocity]) =
            kernel::update(Rule::Sgd(rule), parameter, gradient, [velocity]);
        let velocity = Some(velocity);
        (parameter, SgdState { velocity })
    }
}

impl Sgd {
    /// The hyperparameters of a step, worked out in the precision in which Burn does.
    fn rule(&self, learning_rate: LearningRate, first: bool) -> rule::Sgd {
        let config = &self.config;
        let momentum = config.momentum.clone().unwrap_or_else(MomentumConfig::new);
        rule::Sgd {
            learning_rate,
            penalty: config
                .weight_decay
                .as_ref()
                .map(|decay| decay.penalty.into()),
            momentum: f64::from(momentum.momentum as f32),
            rest: if first { 1.0 } else { 1.0 - momentum.dampening },
            nesterov: momentum.nesterov,
        }
    }

    /// The step on a backend without a kernel. Burn's own keeps its velocity to itself.
    fn step_by_operations<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        velocity: Option<Tensor<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let gradient = match &self.config.weight_decay {
            Some(decay) => WeightDecay::new(decay).transform(gradient, parameter.clone()),
            None => gradient,
        };
        let Some(config) = &self.config.momentum else {
            let parameter = parameter - gradient.mul_scalar(lr);
            return (parameter, Some(SgdState { velocity }));
        };
        let momentum = config.momentum as f32;
        let velocity = match velocity {
            Some(velocity) => {
                let gradient = gradient.clone().mul_scalar(1.0 - config.dampening);
                gradient.add(velocity.mul_scalar(momentum))
            }
            None => gradient.clone(),
        };
        let direction = match config.nesterov {
            true => velocity.clone().mul_scalar(momentum).add(gradient),
            false => velocity.clone(),
        };
        let velocity = Some(velocity);
        let parameter = parameter - direction.mul_scalar(lr);
        (parameter, Some(SgdState { velocity }))
    }
}

/// `momentum.velocity`, as Burn's own.
impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            let data = velocity.to_data();
            sink.push_tensor(&format!("{prefix}.momentum"), "velocity", data);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let data = source.take_tensor(&format!("{prefix}.momentum"), "velocity");
        Some(Self {
            velocity: data.map(|data| Tensor::from_data(data, device)),
        })
    }
}
