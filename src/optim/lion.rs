use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{
    self, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};

use super::call;
use super::format::{
    Formats, LowBits, Noise, RecordedFormat, Root, StateFormat, StateTensor, Weight, WeightFormat,
};
use super::kernel::{self, update_in_format};
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
#[derive(Clone)]
pub struct Lion {
    config: LionConfig,
    /// For backends without a kernel.
    stock: optim::Lion,
}

/// State of [`Lion`]; its record is that of Burn's [`LionState`](burn::optim::LionState), with the low bits of the
/// weight beside it if there are any.
#[derive(Clone, Debug)]
pub struct LionState<const D: usize> {
    /// The moving average of the gradient.
    pub momentum: StateTensor<D>,
    /// The number of steps in which momentum or weight were kept in a format.
    pub time: usize,
    /// What the weight in bf16 lacks.
    pub low_bits: Option<LowBits>,
}

impl<const D: usize> LionState<D> {
    fn full(momentum: Tensor<D>) -> Self {
        Self {
            momentum: StateTensor::Full(momentum),
            time: 0,
            low_bits: None,
        }
    }
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
        let low_bits = state.as_ref().and_then(|state| state.low_bits.as_ref());
        let momentum = state.as_ref().map(|state| state.momentum.shape());
        let formats = self.formats();
        let refusal = kernel::refusal(formats, &parameter, &gradient, momentum, low_bits);
        if let Some(reason) = refusal {
            call::refuse(reason);
            return (parameter, state);
        }
        if !self.formats().are_plain_for(&parameter) {
            let (parameter, state) = self.step_in_format(lr, parameter, gradient, state);
            return (parameter, Some(state));
        }
        let momentum = state.map(|state| state.momentum.full());
        let (parameter, momentum) = match kernel::covers(&parameter) {
            false => {
                let state = momentum.map(optim::LionState::new);
                let (parameter, state) = self.stock.step(lr, parameter, gradient, state);
                (parameter, state.map(|state| state.momentum))
            }
            true => {
                let momentum = momentum.unwrap_or_else(|| kernel::blank(&parameter));
                let rule = Rule::Lion(self.rule(lr));
                let (parameter, [momentum]) = kernel::update(rule, parameter, gradient, [momentum]);
                (parameter, Some(momentum))
            }
        };
        (parameter, momentum.map(LionState::full))
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        LionState {
            momentum: state.momentum.on_device(device),
            time: state.time,
            low_bits: state.low_bits.map(|low| low.on_device(device)),
        }
    }
}

impl Lion {
    fn formats(&self) -> Formats {
        Formats {
            state: self.config.state_format,
            weight: self.config.weight_format,
        }
    }

    fn step_in_format<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, LionState<D>) {
        let (momentum, time, low_bits) = match state {
            Some(state) => (Some(state.momentum), state.time, state.low_bits),
            None => (None, 0, None),
        };
        let time = time + 1;
        let momentum = self.formats().state(momentum, Root::Signed, &parameter);
        let weight = self.formats().weight(parameter, low_bits);
        let (weight, [momentum]) = update_in_format(
            Rule::Lion(self.rule(lr)),
            weight,
            gradient,
            [momentum],
            Noise::of_step(time),
        );
        let Weight {
            value, low_bits, ..
        } = weight;
        let state = LionState {
            momentum,
            time,
            low_bits,
        };
        (value, state)
    }

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

/// `momentum`, as Burn's own.
impl<const D: usize> RecordState for LionState<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        self.momentum.flatten(prefix, "momentum", sink);
        RecordedFormat::of([&self.momentum], self.time).flatten(prefix, sink);
        if let Some(low) = &self.low_bits {
            low.flatten::<D>(prefix, sink);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let format = RecordedFormat::unflatten(prefix, source)?;
        let low_bits = LowBits::unflatten(prefix, source, device).ok()?;
        let momentum =
            StateTensor::unflatten(prefix, "momentum", Root::Signed, &format, source, device)?;
        Some(Self {
            momentum,
            time: format.time,
            low_bits,
        })
    }
}
