use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use super::call;
use super::element_wise::{AccumulateInState, ElementWise};
use super::format::{Fitted, Formats, StateFormat, WeightFormat};
use super::kernel;
use super::rule::Step;
use super::state::RuledState;

/// The Burn optimizer of an [`ElementWise`] one, in a single pass over memory.
///
/// ```
/// use backburn_optim::{LionConfig, Ruled, StateFormat};
/// use burn::optim::ModuleOptimizer;
///
/// let lion = Ruled::new(LionConfig::new()).with_state_format(StateFormat::Bits8);
/// let optimizer = ModuleOptimizer::from(lion);
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

impl<R: ElementWise> Ruled<R> {
    /// With full states, and weights as they are.
    pub fn new(optimizer: R) -> Self {
        let formats = Formats {
            state: StateFormat::Full,
            weight: WeightFormat::Plain,
            is_around: false,
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
}

impl<R: AccumulateInState> Ruled<R> {
    /// Why this optimizer can't accumulate in its state, if it can't.
    #[doc(hidden)]
    pub fn accumulation_refusal(&self) -> Option<&'static str> {
        let is_full = self.formats.state == StateFormat::Full;
        let of_format =
            "a state in few bits would be rounded with every micro-batch: use `StateFormat::Full`";
        let refusal = self.optimizer.refusal();
        refusal.or((!is_full).then_some(of_format))
    }
}

impl<R: ElementWise, const D: usize> RuledState<R, D> {
    /// How `parameter` is stepped from this state in these formats. Refuses a step that can't be.
    pub(super) fn fit(
        state: Option<&Self>,
        formats: Formats,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
    ) -> Result<Fitted, String> {
        let low_bits = state.and_then(|state| state.low_bits.as_ref());
        let states = state.map_or(&[][..], |state| &state.states);
        formats.fit(parameter, gradient, states, low_bits)
    }

    /// The step of the next gradient, after which there are `more_to_come` of its group of micro-batches or not: a group
    /// counts as one step.
    fn next_step(&mut self, learning_rate: LearningRate, more_to_come: bool) -> Step {
        let anew = || Step {
            learning_rate: 0.0,
            time: self.time as i32 + 1,
            is_first: self.states.iter().all(Option::is_none),
            adds: false,
        };
        let more = |begun| Step {
            adds: true,
            ..begun
        };
        let mut step = self.begun.map_or_else(anew, more);
        self.begun = more_to_come.then_some(step);
        if !more_to_come {
            step.learning_rate = learning_rate;
        }
        step
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
        let fitted = RuledState::fit(state.as_ref(), self.formats, &parameter, &gradient);
        let Ok(formats) = fitted.map_err(call::refuse) else {
            return (parameter, state);
        };
        let mut state = state.unwrap_or_else(RuledState::none);
        let step = state.next_step(lr, call::more_to_come());
        let rule = self.optimizer.rule(step);
        let (taken, there) = (rule.states, R::STATES.len());
        assert!(
            taken <= there,
            "the rule of {:?} takes {taken} states, and there are {there} `STATES`",
            self.optimizer
        );
        let taken = &R::STATES[..taken];
        let before = taken.iter().zip(&mut state.states).enumerate();
        let before = before.map(|(index, (kept, state))| {
            // Beside its maximum, a state is always full.
            let has_maximum = taken.get(index + 1).is_some_and(|next| next.root.is_none());
            let root = kept.root.filter(|_| !has_maximum);
            formats.state(state.take(), root, || kept.blank(), &parameter)
        });
        let before = before.collect();
        let weight = formats.weight(parameter, state.low_bits.take());
        let time = step.time as usize;
        let (weight, after) = kernel::update(rule, weight, gradient, before, time);
        let counts = R::TIME.is_some() || !formats.is_plain;
        state.time = if counts { time } else { 0 };
        state.low_bits = weight.low_bits;
        for (state, after) in state.states.iter_mut().zip(after) {
            *state = Some(after);
        }
        (weight.value, Some(state))
    }

    fn to_device<const D: usize>(state: RuledState<R, D>, device: &Device) -> RuledState<R, D> {
        let states = state.states.into_iter();
        let states = states.map(|state| state.map(|state| state.on_device(device)));
        RuledState {
            states: states.collect(),
            low_bits: state.low_bits.map(|low| low.on_device(device)),
            ..state
        }
    }
}
