//! What the caller of an optimizer's step and the optimizer tell each other beside arguments and
//! result, for which Burn's `Optimizer` has no room.

use std::cell::RefCell;

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use super::rule::AverageRule;
use crate::parameters::AnyTensor;

#[derive(Default)]
struct Call {
    more_to_come: bool,
    reserve: Option<AnyTensor>,
    in_place: bool,
    refusal: Option<String>,
    /// An average of the parameter, in the type in which it is computed, which the step may take on in its own pass over memory.
    lent: Option<(AnyTensor, AverageRule)>,
    /// The average as the step has left it.
    averaged: Option<AnyTensor>,
    /// Whether what an optimizer writes is what the caller gets.
    is_direct: bool,
}

/// An optimizer of this crate that nobody of another has put into his own: what it writes is the new parameter.
#[derive(Clone, Debug)]
pub(super) struct Direct<O>(pub(super) O);

impl<O: Optimizer> Optimizer for Direct<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        tell(|call| call.is_direct = true);
        self.0.step(lr, parameter, gradient, state)
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}

thread_local! {
    /// None where nobody listens, as in a stock loop.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// Tells the caller something, or asks; none where nobody listens.
fn tell<R>(tell: impl FnOnce(&mut Call) -> R) -> Option<R> {
    CALL.with_borrow_mut(|call| call.as_mut().map(tell))
}

/// A call of an optimizer's step on this thread, until it is dropped.
pub(crate) struct StepCall {
    before: Option<Call>,
}

impl StepCall {
    /// `more_to_come` says that the gradient is not the last of its group of micro-batches. The
    /// `reserve` is a handle to the parameter, which an optimizer that writes in place gives up when
    /// nothing can go wrong any more.
    pub(crate) fn begin(more_to_come: bool, reserve: Option<AnyTensor>) -> Self {
        let call = Call {
            more_to_come,
            reserve,
            ..Call::default()
        };
        Self {
            before: CALL.replace(Some(call)),
        }
    }

    /// Why the optimizer has not stepped, and has given back what it got.
    pub(crate) fn refusal(&self) -> Option<String> {
        tell(|call| call.refusal.take()).flatten()
    }

    /// The reserve, unless the optimizer has given it up and has not come to the end.
    pub(crate) fn take_reserve(&self) -> Option<AnyTensor> {
        tell(|call| call.reserve.take()).flatten()
    }

    /// Lends the step an average, and how it goes on.
    pub(super) fn lend(&self, mean: AnyTensor, rule: AverageRule) {
        tell(|call| call.lent = Some((mean, rule)));
    }

    /// The average that was lent, and whether the step has taken it on; none if it was lost in a panic.
    pub(super) fn take_back(&self) -> Option<(AnyTensor, bool)> {
        let back = |call: &mut Call| match (call.averaged.take(), call.lent.take()) {
            (Some(mean), _) => Some((mean, true)),
            (None, lent) => lent.map(|(mean, _)| (mean, false)),
        };
        tell(back).flatten()
    }
}

impl Drop for StepCall {
    fn drop(&mut self) {
        CALL.set(self.before.take());
    }
}

/// Whether more gradients of the group follow; without a caller that says so, each is the last.
pub(super) fn more_to_come() -> bool {
    tell(|call| call.more_to_come).unwrap_or(false)
}

/// What a step has checked. Where it can't be, it is refused: parameter and state are given back as they are.
///
/// # Panics
///
/// If it is refused where nobody listens, as in a stock loop.
pub(super) fn unless_refused<T>(checked: Result<T, String>) -> Option<T> {
    let refuse = |reason| {
        if let Some(reason) = tell_unfit(reason) {
            panic!("{reason}");
        }
    };
    checked.map_err(refuse).ok()
}

/// The caller asks whether a parameter can be stepped, by loading a record for it, and it can't. Returns the reason where
/// nobody listens.
pub(super) fn tell_unfit(reason: String) -> Option<String> {
    let mut reason = Some(reason);
    tell(|call| call.refusal = reason.take());
    reason
}

/// The average that was lent and how it goes on, if it `fits`, and if what the step writes is the new parameter.
pub(super) fn borrow_average<const D: usize>(
    fits: impl FnOnce(&Tensor<D>) -> bool,
) -> Option<(Tensor<D>, AverageRule)> {
    let borrow = |call: &mut Call| {
        let is_direct = call.is_direct;
        let lent = call
            .lent
            .take_if(|(mean, _)| is_direct && mean.rank() == D && fits(&mean.clone().of_rank()));
        lent.map(|(mean, rule)| (mean.of_rank(), rule))
    };
    tell(borrow).flatten()
}

/// Gives the average back, which has gone on with the step.
pub(super) fn return_average<const D: usize>(mean: Tensor<D>) {
    tell(|call| call.averaged = Some(mean.into()));
}

/// Runs `step`, that of another optimizer, without a caller who listens: what it would say is about other tensors.
pub(super) fn unheard<R>(step: impl FnOnce() -> R) -> R {
    let before = CALL.take();
    let _nobody = StepCall { before };
    step()
}

/// From here on the step does not fail: the parameter can be written in place.
pub(super) fn give_up_reserve() {
    let before = tell(|call| {
        call.in_place = true;
        call.reserve.take()
    });
    drop(before);
}

/// The parameter has been written: what has called this optimizer may fail yet.
pub(super) fn renew_reserve<const D: usize>(parameter: &Tensor<D>) {
    let reserve = AnyTensor::from(parameter.clone());
    let before = tell(|call| call.in_place.then(|| call.reserve.replace(reserve)));
    drop(before);
}
