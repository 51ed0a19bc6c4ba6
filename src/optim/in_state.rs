use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};

use super::call;
use super::moments::MomentsState;
use super::rule::Moments;
use super::{Adam, AdamW, Sgd};

/// An optimizer whose state can take the gradients of micro-batches one by one, so that no buffer
/// has to add them up: [`Adam`], [`AdamW`] and [`Sgd`] with momentum.
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
/// See [`FusedOptimizer::accumulating_in_state`](crate::FusedOptimizer::accumulating_in_state).
#[diagnostic::on_unimplemented(
    message = "the state of `{Self}` can't take the gradients of micro-batches",
    label = "accumulates in no optimizer state",
    note = "use `backburn::optim::{{Adam, AdamW, Sgd}}`, or accumulate in a buffer with `FusedOptimizer::new`"
)]
pub trait AccumulateInState: Optimizer + sealed::Sealed {
    /// Why the options of this optimizer don't allow it, if they don't.
    #[doc(hidden)]
    fn refusal(&self) -> Option<&'static str>;

    /// Why this step can't be, if it can't.
    #[doc(hidden)]
    fn refuses<const D: usize>(
        &self,
        parameter: &Tensor<D>,
        gradient: &Tensor<D>,
        state: Option<&Self::State<D>>,
    ) -> Option<String>;

    /// Takes one gradient into the state, and steps the parameter if it is the last of its group.
    #[doc(hidden)]
    fn step_micro_batch<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
        batch: MicroBatch,
    ) -> (Tensor<D>, Self::State<D>);
}

/// Where a gradient stands in its group.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch {
    pub(super) first: bool,
    pub(super) last: bool,
    /// There was no state before the group.
    pub(super) fresh: bool,
}

impl MicroBatch {
    /// Nothing moves before the last.
    pub(super) fn learning_rate(self, learning_rate: LearningRate) -> LearningRate {
        match self.last {
            true => learning_rate,
            false => 0.0,
        }
    }

    /// The moments decay with the first.
    pub(super) fn moments(self, moments: Moments) -> Moments {
        match self.first {
            true => moments,
            false => moments.adding(),
        }
    }

    /// A group counts as one step.
    pub(super) fn at_same_time<const D: usize>(
        self,
        mut state: MomentsState<D>,
    ) -> MomentsState<D> {
        if !self.first {
            state.time -= 1;
        }
        state
    }
}

/// An optimizer that accumulates in its state, if its caller says that more gradients follow. In
/// Burn's own loop each is the last of its group.
#[derive(Clone)]
pub(crate) struct InState<O> {
    optimizer: O,
}

impl<O: AccumulateInState> InState<O> {
    pub(crate) fn new(optimizer: O) -> Self {
        Self { optimizer }
    }
}

/// The state of the optimizer, and that of the group that has begun.
#[derive(Clone)]
pub(crate) struct GroupState<S> {
    state: S,
    begun: Option<Begun>,
}

#[derive(Clone, Copy)]
struct Begun {
    fresh: bool,
}

impl<O: AccumulateInState> Optimizer for InState<O> {
    type State<const D: usize> = GroupState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let inner = state.as_ref().map(|state| &state.state);
        if let Some(reason) = self.optimizer.refuses(&parameter, &gradient, inner) {
            call::refuse(reason);
            return (parameter, state);
        }
        let (state, begun) = match state {
            Some(GroupState { state, begun }) => (Some(state), begun),
            None => (None, None),
        };
        let batch = MicroBatch {
            first: begun.is_none(),
            last: !call::more_to_come(),
            fresh: begun.map_or(state.is_none(), |begun| begun.fresh),
        };
        let (parameter, state) = self
            .optimizer
            .step_micro_batch(lr, parameter, gradient, state, batch);
        let begun = (!batch.last).then_some(Begun { fresh: batch.fresh });
        (parameter, Some(GroupState { state, begun }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        GroupState {
            state: O::to_device(state.state, device),
            begun: state.begun,
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
        Some(Self { state, begun: None })
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Adam {}
    impl Sealed for super::AdamW {}
    impl Sealed for super::Sgd {}
}
