//! The channel between the caller of an optimizer's step and the optimizer, in addition to the arguments and the result of Burn's
//! `Optimizer`.
//!
//! The caller wraps the step in [`Call::make`]. The optimizer reads [`more_micro_batches_follow`](Call::more_micro_batches_follow) and
//! [`query`](Call::query), and writes [`parameter`](Call::parameter), [`has_written`](Call::has_written) and
//! [`refusal`](Call::refusal). Without a call, as in a stock loop, each gradient is the last of its group, and a refusal is a panic.
//!
//! # Invariants
//!
//! A call is per thread, and a step runs on the thread of its call. While it waits for other threads it has no call, because a thread
//! of a rayon pool then runs other work, such as the steps of another training. An optimizer drops `parameter` before it writes in
//! place. After that, only the formula of a user can panic.

use std::cell::RefCell;

use burn::tensor::Device;

use backburn_base::AnyTensor;
use backburn_base::caught::{Caught, catch, finally};

/// A call of an optimizer's step: the input of its caller and the reply of the optimizer.
#[derive(Default)]
pub struct Call {
    /// `true` if more gradients of the same group of micro-batches follow.
    pub more_micro_batches_follow: bool,
    /// Set if the call is a query: the optimizer then reports if it does not support this parameter.
    pub query: Option<Query>,
    /// Set if the optimizer may store weights or states in fewer bits.
    pub may_have_formats: bool,
    /// Handle to the parameter, before or after the step. `None` while a step writes in place.
    pub parameter: Option<AnyTensor>,
    /// `true` if `parameter` is the parameter after the step.
    pub has_written: bool,
    /// Reason why the optimizer did not step. It has then returned its input unchanged.
    pub refusal: Option<String>,
}

/// A query about a parameter, which a single element represents in the step.
#[derive(Clone)]
pub struct Query {
    /// Device of the step.
    pub device: Device,
    /// Number of elements of the parameter.
    pub elements: usize,
}

thread_local! {
    /// `None` without a caller, as in a stock loop.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

impl Call {
    /// Calls `step` on this thread. Returns its result or panic, and the reply.
    pub fn make<R>(self, step: impl FnOnce() -> R) -> (Result<R, Caught>, Self) {
        let before = CALL.replace(Some(self));
        let ended = catch(step);
        let answer = CALL.replace(before);
        (ended, answer.expect("`without_caller` restores the call"))
    }
}

/// Runs `step` without a caller: another optimizer, whose reports would concern other tensors, or work on all threads. While that waits,
/// this thread may run another training.
pub(super) fn without_caller<R>(step: impl FnOnce() -> R) -> R {
    let call = CALL.take();
    finally(step, || CALL.set(call))
}

/// Returns the result of `work` with the call, or `None` without a caller.
pub(super) fn with<R>(work: impl FnOnce(&mut Call) -> R) -> Option<R> {
    CALL.with_borrow_mut(|call| call.as_mut().map(work))
}

/// Returns the device of the step: that of the query, or else that of the parameter.
pub(super) fn device(parameter: Device) -> Device {
    query().map_or(parameter, |query| query.device)
}

/// Returns the number of elements: that of the query, or else that of the parameter.
pub(super) fn elements(parameter: usize) -> usize {
    query().map_or(parameter, |query| query.elements)
}

fn query() -> Option<Query> {
    with(|call| call.query.clone()).flatten()
}

/// Reports why a step is refused. The optimizer returns parameter and state unchanged.
///
/// # Panics
///
/// If there is no caller, as in a stock loop.
pub(super) fn refuse(reason: String) {
    if with(|call| call.refusal = Some(reason.clone())).is_none() {
        panic!("{reason}");
    }
}
