//! The optimizers, and the state that a Burn record keeps of each.

use backburn::optim::{self as ours, InFormat};
use burn::optim::*;

use crate::common::*;

/// An optimizer with the effect of a Burn record on its state.
pub struct Named {
    pub name: &'static str,
    pub make: fn() -> ModuleOptimizer,
    pub recorded: Recorded,
    /// The float types that it supports. All others are refused with the reason.
    steps: Steps,
}

/// The state after a record, which Burn loads in the default float type of its default device, f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recorded {
    Stateless,
    /// f32 tensors for any original type. They don't match gradients of another type.
    InF32,
    /// `InF32`, but the states of weights in half types are in f32 from the start.
    HalvesInF32,
    /// f32 tensors, which the next step casts to the type of the parameter.
    ThroughF32,
    /// Only a part of the state.
    InPart,
}

enum Steps {
    All,
    AllBut(FloatDType, &'static str),
    Only(FloatDType, &'static str),
}

impl Named {
    /// Returns the reason why a parameter in `dtype` is not supported.
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

/// Returns each of Burn's optimizers that update per parameter, each of ours, ours with formats, and one of a user.
pub fn all() -> Vec<Named> {
    use Recorded::{HalvesInF32, InF32, InPart, Stateless, ThroughF32};
    let named = |name, recorded, make| Named {
        name,
        make,
        recorded,
        steps: Steps::All,
    };
    let in_format = |name, steps, make| Named {
        name,
        make,
        recorded: ThroughF32,
        steps,
    };
    vec![
        named("Sgd", Stateless, || SgdConfig::new().init()),
        named("Sgd with momentum", InF32, || {
            SgdConfig::new().with_momentum(dampened()).init()
        }),
        named("Adam", InF32, || AdamConfig::new().init()),
        named("Adam with AMSGrad", InF32, || {
            AdamConfig::new().with_amsgrad(true).init()
        }),
        named("AdamW", InF32, || AdamWConfig::new().init()),
        named("AdaGrad", InF32, || AdaGradConfig::new().init()),
        named("RmsProp", InF32, || {
            RmsPropConfig::new().with_centered(true).init()
        }),
        named("Adafactor", HalvesInF32, || AdafactorConfig::new().init()),
        named("Adan", InF32, || AdanConfig::new().init()),
        named("Lamb", InF32, || LambConfig::new().init()),
        named("Lion", InF32, || LionConfig::new().init()),
        // Muon steps matrices only.
        named("Muon beside AdamW", InF32, || {
            let (weights, muon) = (ParamGroup::from_predicate("weight"), MuonConfig::new());
            let adamw = AdamWConfig::new().init();
            adamw.with_group(weights, muon.build(), None)
        }),
        named("our Sgd", Stateless, || ours::SgdConfig::new().init()),
        named("our Sgd with momentum", ThroughF32, || {
            ours::SgdConfig::new().with_momentum(dampened()).init()
        }),
        named("our Adam", ThroughF32, || ours::AdamConfig::new().init()),
        named("our AdamW with AMSGrad", ThroughF32, || {
            ours::AdamWConfig::new().with_amsgrad(true).init()
        }),
        named("our Lion", ThroughF32, || ours::LionConfig::new().init()),
        in_format("our AdamW in `Bits8`", FEW_BITS, || {
            let config = ours::AdamWConfig::new();
            config.with_state_format(StateFormat::Bits8).init()
        }),
        in_format("our Lion in `Bits4`", FEW_BITS, || {
            let config = ours::LionConfig::new();
            config.with_state_format(StateFormat::Bits4).init()
        }),
        in_format("our AdamW in `Split24` and `Bits8`", OF_BF16, || {
            let config = ours::AdamWConfig::new().with_state_format(StateFormat::Bits8);
            config.with_weight_format(WeightFormat::Split24).init()
        }),
        in_format("our Sgd in `Stochastic`", OF_BF16, || {
            let config = ours::SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
            config.with_weight_format(WeightFormat::Stochastic).init()
        }),
        in_format("Adafactor in `Split24`", OF_BF16, || {
            let adafactor = AdafactorConfig::new().build();
            InFormat::new(adafactor, WeightFormat::Split24).into()
        }),
        named("a user's, that warms up", InPart, || WarmingUp.into()),
    ]
}

fn dampened() -> Option<MomentumConfig> {
    Some(MomentumConfig::new().with_dampening(0.3))
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
