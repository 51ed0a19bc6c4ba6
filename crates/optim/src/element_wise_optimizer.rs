use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use super::call;
use super::element_wise::{AccumulateInState, ElementWise};
use super::format::{Formats, StateFormat, WeightFormat};
use super::kernel;
use super::state::ElementWiseState;

/// A Burn optimizer of an [`ElementWise`] formula, in a single pass over memory.
///
/// ```
/// use backburn_optim::{ElementWiseOptimizer, LionConfig, StateFormat};
/// use burn::optim::ModuleOptimizer;
///
/// let lion: ElementWiseOptimizer<_> = LionConfig::new().with_state_format(StateFormat::Bits8).build();
/// let optimizer = ModuleOptimizer::from(lion);
/// ```
#[derive(Clone, Debug)]
pub struct ElementWiseOptimizer<R> {
    pub(super) optimizer: R,
    pub(super) formats: Formats,
}

/// Implements `build` and `init` for an element-wise config with formats and gradient clipping.
macro_rules! element_wise_config {
    ($config:ty, $clipping:ident) => {
        impl $config {
            /// Returns the bare optimizer, for a parameter group. Gradient clipping is not part of it.
            pub fn build(&self) -> ElementWiseOptimizer<Self> {
                ElementWiseOptimizer::new(self.clone())
                    .with_state_format(self.state_format)
                    .with_weight_format(self.weight_format)
            }

            /// Returns the optimizer of a whole module, with gradient clipping.
            pub fn init(&self) -> burn::optim::ModuleOptimizer {
                super::with_clipping(self.build(), self.$clipping.as_ref())
            }
        }
    };
}

pub(super) use element_wise_config;

impl<R: ElementWise> ElementWiseOptimizer<R> {
    /// Creates the optimizer with full states and plain weights. Formats and clipping of a config are not used: call its `build` or
    /// `init` instead.
    pub fn new(optimizer: R) -> Self {
        let formats = Formats {
            state: StateFormat::Full,
            weight: WeightFormat::Plain,
            is_wrapper: false,
        };
        Self { optimizer, formats }
    }

    /// Sets the format of the states.
    pub fn with_state_format(mut self, format: StateFormat) -> Self {
        self.formats.state = format;
        self
    }

    /// Sets the format of weights in bf16.
    pub fn with_weight_format(mut self, format: WeightFormat) -> Self {
        self.formats.weight = format;
        self
    }
}

impl<R: AccumulateInState> ElementWiseOptimizer<R> {
    /// Returns the reason if this optimizer can't accumulate in its state.
    #[doc(hidden)]
    pub fn accumulation_refusal(&self) -> Option<&'static str> {
        let is_full = self.formats.state == StateFormat::Full;
        let of_format =
            "a low-bit state would be rounded with each micro-batch: use `StateFormat::Full`";
        let refusal = self.optimizer.refusal();
        refusal.or((!is_full).then_some(of_format))
    }
}

impl<R: ElementWise> Optimizer for ElementWiseOptimizer<R> {
    type State<const D: usize> = ElementWiseState<R, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<ElementWiseState<R, D>>,
    ) -> (Tensor<D>, Option<ElementWiseState<R, D>>) {
        let states = state.as_ref().map_or(&[][..], |state| &state.states);
        let residual = state.as_ref().and_then(|state| state.residual.as_ref());
        let resolved = self
            .formats
            .resolve(&parameter, &gradient, states, residual);
        let Ok(formats) = resolved.map_err(call::refuse) else {
            return (parameter, state);
        };
        let mut state = state.unwrap_or_else(ElementWiseState::none);
        let mut step = state.begin_step(lr);
        // A format needs the number of steps for its random bits.
        let time = step.time as usize;
        if R::TIME.is_none() {
            step.time = 1;
        }
        let rule = self.optimizer.rule(step);
        let (taken, count) = (rule.states, R::STATES.len());
        assert!(
            taken <= count,
            "the rule of {:?} takes {taken} states, but `STATES` declares {count}",
            self.optimizer
        );
        assert!(
            R::STATES[taken..].iter().all(|state| state.is_optional),
            "the rule of {:?} takes {taken} states, and a later one of `STATES` is not `optional()`",
            self.optimizer
        );
        let taken = &R::STATES[..taken];
        let before = taken.iter().zip(&mut state.states).enumerate();
        let before = before.map(|(index, (declared, state))| {
            // A state with a maximum is always in full precision.
            let has_maximum = taken.get(index + 1).is_some_and(|next| next.root.is_none());
            let root = declared.root.filter(|_| !has_maximum);
            formats.state(state.take(), root, || declared.blank(), &parameter)
        });
        let before = before.collect();
        let weight = formats.weight(parameter, state.residual.take());
        let (weight, after) = kernel::update(rule, weight, gradient, before, time);
        let counts = R::TIME.is_some() || !formats.is_plain;
        state.time = if counts { time } else { 0 };
        state.residual = weight.residual;
        for (state, after) in state.states.iter_mut().zip(after) {
            *state = Some(after);
        }
        (weight.value, Some(state))
    }

    fn to_device<const D: usize>(
        state: ElementWiseState<R, D>,
        device: &Device,
    ) -> ElementWiseState<R, D> {
        let states = state.states.into_iter();
        let states = states.map(|state| Some(state?.on_device(device)));
        ElementWiseState {
            states: states.collect(),
            residual: state.residual.map(|low| low.on_device(device)),
            ..state
        }
    }
}
