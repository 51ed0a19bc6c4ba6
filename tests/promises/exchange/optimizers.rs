//! The optimizers, and what a record of Burn's keeps of each.

use backburn::optim::{self as ours, InFormat};
use burn::optim::*;

use crate::common::*;

/// An optimizer with what Burn's record makes of its state.
pub struct Named {
    pub name: &'static str,
    pub make: fn() -> ModuleOptimizer,
    pub recorded: Recorded,
    /// The float types that it steps, all others being refused with the reason.
    steps: Steps,
}

/// The state after a record, which Burn loads in the default float type of its default device, f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recorded {
    /// There is no state.
    Stateless,
    /// Tensors of f32, whatever they were, which do not meet gradients of another type.
    InF32,
    /// The first optimizers, but the states of weights in half types are in f32 from the start.
    HalvesInF32,
    /// Tensors of f32, which the next step takes to the type of the parameter.
    ThroughF32,
    /// Not all of it.
    InPart,
}

enum Steps {
    All,
    AllBut(FloatDType, &'static str),
    Only(FloatDType, &'static str),
}

impl Named {
    /// Why a parameter in `dtype` is not stepped.
    pub fn refuses(&self, dtype: FloatDType) -> Option<&'static str> {
        match self.steps {
            Steps::AllBut(but, reason) if dtype == but => Some(reason),
            Steps::Only(only, reason) if dtype != only => Some(reason),
            _ => None,
        }
    }
}

const FEW_BITS: Steps = Steps::AllBut(FloatDType::F64, "states in few bits stand for f32");
const OF_BF16: Steps = Steps::Only(FloatDType::BF16, "the format is one of weights in bf16");

/// Every optimizer of Burn's that steps per parameter, every one of ours, ours in formats, and one of a user's.
pub fn all() -> Vec<Named> {
    use Recorded::{HalvesInF32, InF32, InPart, Stateless, ThroughF32};
    let named = |name, make, recorded| Named {
        name,
        make,
        recorded,
        steps: Steps::All,
    };
    let in_format = |name, make, steps| Named {
        name,
        make,
        recorded: ThroughF32,
        steps,
    };
    vec![
        named("Sgd", || SgdConfig::new().init(), Stateless),
        named("Sgd with momentum", momentum, InF32),
        named("Adam", || AdamConfig::new().init(), InF32),
        named(
            "Adam with AMSGrad",
            || AdamConfig::new().with_amsgrad(true).init(),
            InF32,
        ),
        named("AdamW", || AdamWConfig::new().init(), InF32),
        named("AdaGrad", || AdaGradConfig::new().init(), InF32),
        named(
            "RmsProp",
            || RmsPropConfig::new().with_centered(true).init(),
            InF32,
        ),
        named("Adafactor", || AdafactorConfig::new().init(), HalvesInF32),
        named("Adan", || AdanConfig::new().init(), InF32),
        named("Lamb", || LambConfig::new().init(), InF32),
        named("Lion", || LionConfig::new().init(), InF32),
        named("Muon beside AdamW", muon_beside_adamw, InF32),
        named("our Sgd", || ours::SgdConfig::new().init(), Stateless),
        named("our Sgd with momentum", our_momentum, ThroughF32),
        named("our Adam", || ours::AdamConfig::new().init(), ThroughF32),
        named("our AdamW with AMSGrad", our_amsgrad, ThroughF32),
        named("our Lion", || ours::LionConfig::new().init(), ThroughF32),
        in_format("our AdamW in `Bits8`", bits8, FEW_BITS),
        in_format("our Lion in `Bits4`", bits4, FEW_BITS),
        in_format("our AdamW in `Split24` and `Bits8`", split24, OF_BF16),
        in_format("our Sgd in `Stochastic`", stochastic, OF_BF16),
        in_format("Adafactor in `Split24`", wrapped, OF_BF16),
        named("a user's, that warms up", || WarmingUp.into(), InPart),
    ]
}

fn momentum() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_dampening(0.3);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

fn our_momentum() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_dampening(0.3);
    ours::SgdConfig::new().with_momentum(Some(momentum)).init()
}

/// Muon steps matrices only.
fn muon_beside_adamw() -> ModuleOptimizer {
    let weights = ParamGroup::from_predicate("weight");
    let muon = MuonConfig::new().build();
    AdamWConfig::new().init().with_group(weights, muon, None)
}

fn our_amsgrad() -> ModuleOptimizer {
    ours::AdamWConfig::new().with_amsgrad(true).init()
}

fn bits8() -> ModuleOptimizer {
    let config = ours::AdamWConfig::new();
    config.with_state_format(StateFormat::Bits8).init()
}

fn bits4() -> ModuleOptimizer {
    let config = ours::LionConfig::new();
    config.with_state_format(StateFormat::Bits4).init()
}

fn split24() -> ModuleOptimizer {
    ours::AdamWConfig::new()
        .with_state_format(StateFormat::Bits8)
        .with_weight_format(WeightFormat::Split24)
        .init()
}

fn stochastic() -> ModuleOptimizer {
    ours::SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .with_weight_format(WeightFormat::Stochastic)
        .init()
}

fn wrapped() -> ModuleOptimizer {
    let adafactor = AdafactorConfig::new().build();
    InFormat::new(adafactor, WeightFormat::Split24).into()
}

/// SGD with momentum whose steps grow with their number, which its record leaves out.
#[derive(Clone)]
struct WarmingUp;

#[derive(Clone)]
struct Warmth<const D: usize> {
    velocity: Tensor<D>,
    steps: u32,
}

impl<const D: usize> RecordState for Warmth<D> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        sink.push_tensor(prefix, "velocity", self.velocity.to_data());
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = source.take_tensor(prefix, "velocity")?;
        Some(Self {
            velocity: Tensor::from_data(velocity, device),
            steps: 0,
        })
    }
}

impl Optimizer for WarmingUp {
    type State<const D: usize> = Warmth<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Warmth<D>>,
    ) -> (Tensor<D>, Option<Warmth<D>>) {
        let (velocity, steps) = match state {
            Some(Warmth { velocity, steps }) => {
                let velocity = velocity.cast(FloatDType::from(gradient.dtype()));
                (velocity * 0.9 + gradient, steps + 1)
            }
            None => (gradient, 1),
        };
        let tensor = tensor - velocity.clone() * (rate * f64::from(steps));
        (tensor, Some(Warmth { velocity, steps }))
    }

    fn to_device<const D: usize>(state: Warmth<D>, device: &Device) -> Warmth<D> {
        Warmth {
            velocity: state.velocity.to_device(device),
            ..state
        }
    }
}
