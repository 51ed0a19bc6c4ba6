//! A single fault at one stage of a step.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;

/// The stage at which a step fails, in the order of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(usize)]
pub enum Fault {
    Closure = 1,
    /// A backward pass inside the forward closure.
    Backward,
    SecondRun,
    Hook,
    Optimizer,
}

/// The armed fault, the number of times that its stage is passed before, and its rank, if only one.
static ARMED: AtomicUsize = AtomicUsize::new(0);
static PASSES: AtomicUsize = AtomicUsize::new(0);
static RANK: AtomicUsize = AtomicUsize::new(ANY);
const ANY: usize = usize::MAX;

impl Fault {
    /// Arms the fault for the middle of its stage, when some parameters are already updated.
    pub fn arm(self) {
        self.arm_on(ANY);
    }

    /// Arms the fault for the thread of this rank.
    pub fn arm_on(self, rank: usize) {
        let passes = match self {
            Fault::Closure | Fault::Backward => 0,
            Fault::SecondRun => 1,
            Fault::Hook | Fault::Optimizer => 2,
        };
        PASSES.store(passes, Ordering::SeqCst);
        RANK.store(rank, Ordering::SeqCst);
        ARMED.store(self as usize, Ordering::SeqCst);
    }

    /// Returns `true` if this is the moment of the fault.
    pub fn strikes(self) -> bool {
        if ARMED.load(Ordering::SeqCst) != self as usize {
            return false;
        }
        let (rank, thread) = (RANK.load(Ordering::SeqCst), std::thread::current());
        if rank != ANY && thread.name() != Some(format!("rank {rank}").as_str()) {
            return false;
        }
        let fewer = |passes: usize| passes.checked_sub(1);
        let left = PASSES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        // Only one of several threads is the first.
        left.is_err() && ARMED.swap(0, Ordering::SeqCst) == self as usize
    }

    pub fn none_is_armed() -> bool {
        ARMED.load(Ordering::SeqCst) == 0
    }

    /// Returns words of the error or of the panic.
    pub fn says(self) -> &'static str {
        match self {
            Fault::Closure => "in the closure",
            Fault::Backward => "backward was called inside",
            Fault::SecondRun => "in a second run",
            Fault::Hook => "in a hook",
            Fault::Optimizer => "in the optimizer",
        }
    }
}

/// Returns a hook that fails at its fault.
pub fn failing() -> impl GradientHook {
    hook(|_| {
        assert!(!Fault::Hook.strikes(), "in a hook");
        Answer::Use
    })
}

/// Returns `inner` as an optimizer that fails at its fault.
pub fn failing_optimizer(inner: impl Optimizer) -> ModuleOptimizer {
    let fails = |_: &[usize]| assert!(!Fault::Optimizer.strikes(), "in the optimizer");
    intercepted(inner, fails).into()
}
