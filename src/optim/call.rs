//! What the caller of an optimizer's step and the optimizer tell each other beside arguments and
//! result, for which Burn's `Optimizer` has no room.

use std::cell::RefCell;

use burn::tensor::Tensor;

use super::rule::AverageRule;
use crate::caught::{Caught, catch};
use crate::parameters::AnyTensor;

/// A call of an optimizer's step: what its caller says, and what the optimizer answers.
#[derive(Default)]
pub(crate) struct Call {
    /// Whether the gradient is not the last of its group of micro-batches.
    pub(crate) more_to_come: bool,
    /// A handle to the parameter: of before, or as a step has written it. There is none while one writes in place.
    pub(crate) parameter: Option<AnyTensor>,
    pub(crate) mean: Option<Mean>,
    /// Why the optimizer has not stepped, and has given back what it got.
    pub(crate) refusal: Option<String>,
}

/// An average of the parameter, in the type in which it is computed.
pub(crate) enum Mean {
    /// The step may take it on so, in its own pass over memory.
    Lent(AnyTensor, AverageRule),
    /// The step has taken it on.
    TakenOn(AnyTensor),
}

thread_local! {
    /// None where nobody listens, as in a stock loop.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

impl Call {
    /// Calls `step` on this thread. Returns how it has ended, and the answer.
    pub(crate) fn make<R>(self, step: impl FnOnce() -> R) -> (Result<R, Caught>, Self) {
        let before = CALL.replace(Some(self));
        let ended = catch(step);
        let answer = CALL.replace(before);
        (ended, answer.expect("whoever hides a call shows it again"))
    }
}

/// Runs `step`, that of another optimizer, without a caller who listens: what it would say is about other tensors.
pub(super) fn unheard<R>(step: impl FnOnce() -> R) -> R {
    let call = CALL.take();
    let ended = catch(step);
    CALL.set(call);
    ended.unwrap_or_else(|panic| panic.resume())
}

/// Whether more gradients of the group follow; without a caller that says so, each is the last.
pub(super) fn more_to_come() -> bool {
    CALL.with_borrow(|call| call.as_ref().is_some_and(|call| call.more_to_come))
}

/// Says why a step can't be: the optimizer gives parameter and state back as they are.
///
/// # Panics
///
/// If nobody listens, as in a stock loop.
pub(super) fn refuse(reason: String) {
    if let Some(reason) = tell_unfit(reason) {
        panic!("{reason}");
    }
}

/// The caller asks whether a parameter can be stepped, by loading a record for it, and it can't. Returns the reason where
/// nobody listens.
pub(super) fn tell_unfit(reason: String) -> Option<String> {
    let mut reason = Some(reason);
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.refusal = reason.take();
        }
    });
    reason
}

/// Lets a step that does not fail `write` a parameter in place. The caller's handle is given up, and an average that is lent and
/// `fits`, of whatever rank, is taken on as its rule says. The caller has both as they are written, since what has called this
/// optimizer may fail yet.
pub(super) fn writing<const D: usize, R>(
    fits: impl FnOnce(&Tensor<1>) -> bool,
    write: impl FnOnce(Option<(Tensor<D>, AverageRule)>) -> (R, Tensor<D>, Option<Tensor<D>>),
) -> R {
    let fits = |mean: &mut Mean| matches!(mean, Mean::Lent(mean, _) if fits(mean));
    let taken = CALL.with_borrow_mut(|call| {
        let call = call.as_mut()?;
        Some((call.parameter.take(), call.mean.take_if(fits)))
    });
    let lent = taken.and_then(|(_given_up, mean)| match mean? {
        Mean::Lent(mean, rule) => Some((mean.of_rank(), rule)),
        Mean::TakenOn(_) => None,
    });
    let (result, parameter, mean) = write(lent);
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.parameter = Some(parameter.into());
            let taken_on = mean.map(|mean| Mean::TakenOn(mean.into()));
            call.mean = taken_on.or(call.mean.take());
        }
    });
    result
}
