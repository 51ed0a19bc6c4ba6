use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::call;
use super::element_wise::ElementWise;
use super::ruled::{MicroBatch, Ruled};
use super::state::RuledState;

/// An optimizer whose state can take the gradients of micro-batches one by one, so that no buffer
/// has to add them up: [`Adam`](super::Adam), [`AdamW`](super::AdamW) and [`Sgd`](super::Sgd) with momentum.
///
/// The state decays once, before the first gradient of a group, and the parameter is stepped with the
/// last. For `Sgd` that is the step with the sum of the gradients. For Adam's second moment it is an
/// approximation, AdamA ([Zhang et al., 2023](https://arxiv.org/abs/2305.19982)): the sum of the
/// squares of the gradients `g_i` takes the place of the square of their sum,
///
/// ```text
/// m = beta_1 m + (1 - beta_1) (g_1 + .. + g_n)
/// v = beta_2 v + (1 - beta_2) (g_1^2 + .. + g_n^2)
/// ```
///
/// An optimizer of your own takes part if its [`rule`](ElementWise::rule) looks at [`Step::decay`](super::Step::decay),
/// and uses a gradient for nothing but to add to its states.
///
/// See [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state).
#[diagnostic::on_unimplemented(
    message = "the state of `{Self}` can't take the gradients of micro-batches",
    label = "accumulates in no optimizer state",
    note = "use `backburn::optim::{{Adam, AdamW, Sgd}}`, or accumulate in a buffer with `FusedOptimizer::new`"
)]
pub trait AccumulateInState: ElementWise {
    /// Why the options of this optimizer don't allow it, if they don't.
    fn refusal(&self) -> Option<&'static str> {
        None
    }
}

impl<R: AccumulateInState> Ruled<R> {
    /// Why this optimizer can't accumulate in its state, if it can't.
    pub(crate) fn accumulation_refusal(&self) -> Option<&'static str> {
        self.optimizer.refusal().or(self.formats.refusal())
    }
}

/// An optimizer that accumulates in its state, if its caller says that more gradients follow. In
/// Burn's own loop each is the last of its group.
#[derive(Clone)]
pub(crate) struct InState<R> {
    optimizer: Ruled<R>,
}

impl<R: AccumulateInState> InState<R> {
    pub(crate) fn new(optimizer: Ruled<R>) -> Self {
        Self { optimizer }
    }
}

/// The state of the optimizer, and that of the group that has begun.
#[derive(Clone)]
pub(crate) struct GroupState<S> {
    state: S,
    /// Of a group that has begun: whether there was no state before.
    begun_fresh: Option<bool>,
}

impl<R: AccumulateInState> Optimizer for InState<R> {
    type State<const D: usize> = GroupState<RuledState<R, D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let inner = state.as_ref().map(|state| &state.state);
        let formats = match RuledState::check(inner, self.optimizer.formats, &parameter, &gradient)
        {
            Ok(formats) => formats,
            Err(reason) => {
                call::refuse(reason);
                return (parameter, state);
            }
        };
        let (state, begun) = match state {
            Some(group) => (Some(group.state), group.begun_fresh),
            None => (None, None),
        };
        let is_fresh = || state.as_ref().is_none_or(RuledState::is_none);
        let batch = MicroBatch {
            first: begun.is_none(),
            last: !call::more_to_come(),
            fresh: begun.unwrap_or_else(is_fresh),
        };
        let (parameter, state) = self
            .optimizer
            .step_micro_batch(lr, parameter, gradient, state, formats, batch);
        let begun_fresh = (!batch.last).then_some(batch.fresh);
        (parameter, Some(GroupState { state, begun_fresh }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        GroupState {
            state: state.state.on_device(device),
            begun_fresh: state.begun_fresh,
        }
    }
}

/// The record of the optimizer's own state.
impl<S: RecordState> RecordState for GroupState<S> {
    fn state_flatten(&self, prefix: &str, sink: &mut StateSink) {
        self.state.state_flatten(prefix, sink);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let state = S::state_unflatten(prefix, source, device)?;
        Some(Self {
            state,
            begun_fresh: None,
        })
    }
}
