use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::{WeightDecay, WeightDecayConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::call;
use super::format::{
    Formats, LowBits, Noise, RecordedFormat, Root, StateFormat, StateTensor, Weight, WeightFormat,
};
use super::in_state::{AccumulateInState, MicroBatch};
use super::kernel::{self, update_in_format};
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
    /// How the velocity is kept.
    #[config(default = "StateFormat::Full")]
    state_format: StateFormat,
    /// What weights in bf16 have beside their bits.
    #[config(default = "WeightFormat::Plain")]
    weight_format: WeightFormat,
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

/// State of [`Sgd`]; its record is that of Burn's [`SgdState`](burn::optim::SgdState), with the low bits of the weight
/// beside it if there are any.
#[derive(Clone, Debug)]
pub struct SgdState<const D: usize> {
    /// The moving sum of the gradients, if there is momentum.
    pub velocity: Option<StateTensor<D>>,
    /// The number of steps in which velocity or weight were kept in a format.
    pub time: usize,
    /// What the weight in bf16 lacks.
    pub low_bits: Option<LowBits>,
}

impl<const D: usize> SgdState<D> {
    fn full(velocity: Option<Tensor<D>>) -> Self {
        Self {
            velocity: velocity.map(StateTensor::Full),
            time: 0,
            low_bits: None,
        }
    }
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
        if let Some(reason) = self.refuses(&parameter, &gradient, state.as_ref()) {
            call::refuse(reason);
            return (parameter, state);
        }
        if !self.formats().are_plain_for(&parameter) {
            let fresh = velocity(&state).is_none();
            let rule = self.rule(lr, fresh);
            let (parameter, state) = self.step_in_format(rule, parameter, gradient, state);
            return (parameter, Some(state));
        }
        let velocity = state.and_then(|state| state.velocity);
        let velocity = velocity.map(StateTensor::full);
        if !kernel::covers(&parameter) {
            return self.step_by_operations(lr, parameter, gradient, velocity);
        }
        let rule = Rule::Sgd(self.rule(lr, velocity.is_none()));
        if self.config.momentum.is_none() {
            // Burn keeps no velocity that it does not use.
            let (parameter, []) = kernel::update(rule, parameter, gradient, []);
            return (parameter, Some(SgdState::full(velocity)));
        }
        let velocity = velocity.unwrap_or_else(|| kernel::blank(&parameter));
        let (parameter, [velocity]) = kernel::update(rule, parameter, gradient, [velocity]);
        (parameter, Some(SgdState::full(Some(velocity))))
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        SgdState {
            velocity: state.velocity.map(|velocity| velocity.on_device(device)),
            time: state.time,
            low_bits: state.low_bits.map(|low| low.on_device(device)),
        }
    }
}

impl AccumulateInState for Sgd {
    fn refusal(&self) -> Option<&'static str> {
        let refusal = match &self.config.momentum {
            None => Some("`Sgd` without momentum has no state: set `with_momentum`"),
            Some(momentum) => momentum
                .nesterov
                .then_some("Nesterov's momentum looks at the whole gradient"),
        };
        refusal.or(self.formats().refusal())
    }

    fn refuses<const D: usize>(
        &self,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        state: Option<&SgdState<D>>,
    ) -> Option<String> {
        let low_bits = state.and_then(|state| state.low_bits.as_ref());
        let velocity = state.and_then(|state| state.velocity.as_ref());
        let velocity = velocity.map(StateTensor::shape);
        kernel::refusal(self.formats(), parameter, gradient, velocity, low_bits)
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
        if !self.formats().are_plain_for(&parameter) {
            return self.step_in_format(rule, parameter, gradient, state);
        }
        let velocity = state.and_then(|state| state.velocity);
        let velocity = velocity.map_or_else(|| kernel::blank(&parameter), StateTensor::full);
        let (parameter, [velocity]) =
            kernel::update(Rule::Sgd(rule), parameter, gradient, [velocity]);
        (parameter, SgdState::full(Some(velocity)))
    }
}

impl Sgd {
    fn formats(&self) -> Formats {
        let state = match self.config.momentum {
            Some(_) => self.config.state_format,
            None => StateFormat::Full,
        };
        Formats {
            state,
            weight: self.config.weight_format,
        }
    }

    fn step_in_format<const D: usize>(
        &self,
        rule: rule::Sgd,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, SgdState<D>) {
        let (velocity, time, low_bits) = match state {
            Some(state) => (state.velocity, state.time, state.low_bits),
            None => (None, 0, None),
        };
        let time = time + 1;
        let (rule, noise) = (Rule::Sgd(rule), Noise::of_step(time));
        let velocity = match self.config.momentum.is_some() {
            true => Ok(self.formats().state(velocity, Root::Signed, &parameter)),
            // Kept as it is, as Burn does.
            false => Err(velocity),
        };
        let weight = self.formats().weight(parameter, low_bits);
        let (weight, velocity) = match velocity {
            Ok(velocity) => {
                let (weight, [velocity]) =
                    update_in_format(rule, weight, gradient, [velocity], noise);
                (weight, Some(velocity))
            }
            Err(unused) => {
                let (weight, []) = update_in_format(rule, weight, gradient, [], noise);
                (weight, unused)
            }
        };
        let Weight {
            value, low_bits, ..
        } = weight;
        let state = SgdState {
            velocity,
            time,
            low_bits,
        };
        (value, state)
    }

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
            return (parameter, Some(SgdState::full(velocity)));
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
        let parameter = parameter - direction.mul_scalar(lr);
        (parameter, Some(SgdState::full(Some(velocity))))
    }
}

fn velocity<const D: usize>(state: &Option<SgdState<D>>) -> Option<&StateTensor<D>> {
    state.as_ref().and_then(|state| state.velocity.as_ref())
}

/// `momentum.velocity`, as Burn's own.
impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            velocity.flatten(&format!("{prefix}.momentum"), "velocity", sink);
        }
        RecordedFormat::of(&self.velocity, self.time).flatten(prefix, sink);
        if let Some(low) = &self.low_bits {
            low.flatten::<D>(prefix, sink);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let format = RecordedFormat::unflatten(prefix, source)?;
        let low_bits = LowBits::unflatten(prefix, source, device).ok()?;
        let momentum = format!("{prefix}.momentum");
        let (leaf, root) = ("velocity", Root::Signed);
        let velocity = StateTensor::unflatten(&momentum, leaf, root, &format, source, device);
        Some(Self {
            velocity,
            time: format.time,
            low_bits,
        })
    }
}
