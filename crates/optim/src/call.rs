//! The channel between the caller of an optimizer's step and the optimizer, in addition to the arguments and the result of Burn's
//! `Optimizer`.
//!
//! The caller wraps the step in [`Call::make`]. The optimizer reads [`more_to_come`](Call::more_to_come) and
//! [`asked_for`](Call::asked_for), and writes [`parameter`](Call::parameter) and [`refusal`](Call::refusal). Without a call, as in a
//! stock loop, each gradient is the last of its group, and a refusal is a panic.
//!
//! # Invariants
//!
//! A call is per thread, and a step runs on the thread of its call. An optimizer drops `parameter` before it writes in place, and
//! only after the last operation that can fail.

use std::cell::RefCell;

use burn::tensor::Device;

use backburn_base::AnyTensor;
use backburn_base::caught::{Caught, catch};

/// A call of an optimizer's step: what its caller says, and what the optimizer answers.
#[derive(Default)]
pub struct Call {
    /// Whether the gradient is not the last of its group of micro-batches.
    pub more_to_come: bool,
    /// Set if the call only asks whether the optimizer can step such a parameter.
    pub asked_for: Option<Asked>,
    /// Set if the optimizer may keep weights or states in a format.
    pub may_have_formats: bool,
    /// A handle to the parameter: of before, or as a step has written it. There is none while one writes in place.
    pub parameter: Option<AnyTensor>,
    /// Why the optimizer has not stepped, and has given back what it got.
    pub refusal: Option<String>,
}

/// A parameter in whose place a single element is stepped.
#[derive(Clone)]
pub struct Asked {
    /// Where it is stepped.
    pub device: Device,
    /// The number of its elements.
    pub elements: usize,
}

thread_local! {
    /// None where nobody listens, as in a stock loop.
    static CALL: RefCell<Option<Call>> = const { RefCell::new(None) };
}

impl Call {
    /// Calls `step` on this thread. Returns how it has ended, and the answer.
    pub fn make<R>(self, step: impl FnOnce() -> R) -> (Result<R, Caught>, Self) {
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

/// Returns the device of the step: that of the parameter, unless the caller asks about another one.
pub(super) fn device(parameter: Device) -> Device {
    asked_for().map_or(parameter, |asked| asked.device)
}

/// Returns the number of elements to judge: those of the parameter, unless the caller asks about another one.
pub(super) fn elements(parameter: usize) -> usize {
    asked_for().map_or(parameter, |asked| asked.elements)
}

fn asked_for() -> Option<Asked> {
    CALL.with_borrow(|call| call.as_ref()?.asked_for.clone())
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

/// Reports that the state which Burn loads may be in a format.
pub(super) fn report_formats() {
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.may_have_formats = true;
        }
    });
}

/// Gives up the caller's handle to the parameter, so that a step that can't fail any more writes in place.
pub(super) fn give_up_parameter() {
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.parameter = None;
        }
    });
}

/// Gives the caller a handle to the parameter as it was written, since what has called this optimizer may fail yet.
pub(super) fn show_parameter(parameter: impl FnOnce() -> AnyTensor) {
    CALL.with_borrow_mut(|call| {
        if let Some(call) = call {
            call.parameter = Some(parameter());
        }
    });
}
