use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use super::call;
use super::element_wise::ElementWise;
use super::format::{Fitted, Formats, StateFormat, WeightFormat};
use super::kernel;
use super::rule::Step;
use super::state::RuledState;

/// The Burn optimizer of an [`ElementWise`] one, in a single pass over memory.
///
/// ```
/// use backburn::FusedOptimizer;
/// use backburn::optim::{LionConfig, Ruled, StateFormat};
/// use burn::optim::ModuleOptimizer;
/// # use burn::{nn::LinearConfig, tensor::Device};
/// # let model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
///
/// let lion = Ruled::new(LionConfig::new()).with_state_format(StateFormat::Bits8);
/// let fused = FusedOptimizer::new(model, ModuleOptimizer::from(lion));
/// ```
#[derive(Clone, Debug)]
pub struct Ruled<R> {
    pub(super) optimizer: R,
    pub(super) formats: Formats,
}

/// Makes the optimizers of an element-wise config that has formats and the clipping of gradients.
macro_rules! ruled {
    ($config:ty) => {
        impl $config {
            /// The bare optimizer, for a parameter group. Gradient clipping is not part of it.
            pub fn build(&self) -> Ruled<Self> {
                Ruled::new(self.clone())
                    .with_state_format(self.state_format)
                    .with_weight_format(self.weight_format)
            }

            /// The optimizer of a whole module, with gradient clipping.
            pub fn init(&self) -> burn::optim::ModuleOptimizer {
                super::with_clipping(self.build(), self.grad_clipping.as_ref())
            }
        }
    };
}

pub(super) use ruled;

/// Where a gradient stands in its group of micro-batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct MicroBatch {
    pub(super) first: bool,
    pub(super) last: bool,
    /// There was no state before the group.
    pub(super) fresh: bool,
}

impl MicroBatch {
    /// One that is a group of its own.
    pub(super) fn alone(fresh: bool) -> Self {
        Self {
            first: true,
            last: true,
            fresh,
        }
    }
}

impl<R: ElementWise> Ruled<R> {
    /// With full states, and weights as they are.
    pub fn new(optimizer: R) -> Self {
        let formats = Formats {
            state: StateFormat::Full,
            weight: WeightFormat::Plain,
        };
        Self { optimizer, formats }
    }

    /// How states are kept.
    pub fn with_state_format(mut self, format: StateFormat) -> Self {
        self.formats.state = format;
        self
    }

    /// What weights in bf16 have beside their bits.
    pub fn with_weight_format(mut self, format: WeightFormat) -> Self {
        self.formats.weight = format;
        self
    }

    /// Takes one gradient into the state, and steps the parameter if it is the last of its group.
    pub(super) fn step_micro_batch<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<RuledState<R, D>>,
        formats: Fitted,
        batch: MicroBatch,
    ) -> (Tensor<D>, RuledState<R, D>) {
        let mut state = state.unwrap_or_else(RuledState::none);
        // A group counts as one step.
        let time = state.time + usize::from(batch.first);
        let rule = self.optimizer.rule(Step {
            learning_rate: if batch.last { lr } else { 0.0 },
            time: time as i32,
            is_first: batch.fresh,
            adds: !batch.first,
        });
        let taken = rule.0.states();
        let there = R::STATES.len();
        assert!(
            taken <= there,
            "the rule of {:?} takes {taken} states, and there are {there} `STATES`",
            self.optimizer
        );
        let kept = R::STATES.iter().zip(&mut state.states);
        let kept = kept.zip(RuledState::<R, D>::roots(taken));
        let before = kept.map(|((kept, state), root)| {
            formats.state(state.take(), root, || kept.blank(), &parameter)
        });
        let before = before.collect();
        let weight = formats.weight(parameter, state.low_bits.take());
        let (weight, after) = kernel::update(rule, weight, gradient, before, time);
        let counts = R::TIME.is_some() || !formats.is_plain;
        state.time = if counts { time } else { 0 };
        state.low_bits = weight.low_bits;
        for (state, after) in state.states.iter_mut().zip(after) {
            *state = Some(after);
        }
        (weight.value, state)
    }
}

impl<R: ElementWise> Optimizer for Ruled<R> {
    type State<const D: usize> = RuledState<R, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<RuledState<R, D>>,
    ) -> (Tensor<D>, Option<RuledState<R, D>>) {
        let inner = state.as_ref();
        let formats = match RuledState::check(inner, self.formats, &parameter, &gradient) {
            Ok(formats) => formats,
            Err(reason) => {
                call::refuse(reason);
                return (parameter, state);
            }
        };
        let alone = MicroBatch::alone(state.as_ref().is_none_or(RuledState::is_none));
        let (parameter, state) =
            self.step_micro_batch(lr, parameter, gradient, state, formats, alone);
        (parameter, Some(state))
    }

    fn to_device<const D: usize>(state: RuledState<R, D>, device: &Device) -> RuledState<R, D> {
        state.on_device(device)
    }
}
