//! One forward and backward pass: what all who take part in it share, on whichever thread.
//!
//! A [`Session`] lasts as long as its model is fused and knows the pass under way. A [`Scope`] is
//! where the code of a pass is, by thread; it is the only thing here that a thread keeps to itself.

mod blocks;
mod context;
mod counted;
mod course;
mod debt;
mod graph;
mod learned;
mod loss;
mod readers;
mod rehearsal;
mod scope;
mod session;
mod stage;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use parking_lot::{Mutex, MutexGuard};

use crate::caught::catch;
use crate::error::FusedError;
use crate::lock;
use crate::offload::Placement;
use crate::policy::Plan;
use crate::replica::{Membership, Turn};
use counted::Counted;

pub(crate) use blocks::{BlockChoice, Blocks, Way};
pub use context::StepContext;
pub(crate) use course::{Course, Foresight};
pub(crate) use debt::{Debt, Owed};
pub(crate) use graph::Graph;
pub(crate) use learned::{Learned, Reads};
pub use loss::scale_loss;
pub(crate) use readers::Readers;
pub(crate) use rehearsal::Rehearsal;
pub(crate) use scope::{Entered, Place, Scope};
pub(crate) use session::{Running, Session};
pub(crate) use stage::{Closure, Failure, Stage};

/// A pass, from the closure that computes the loss to the last gradient.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) plan: Plan,
    /// The blocks under gradient checkpointing.
    pub(crate) blocks: Blocks,
    /// The autodiff graph that the closure records in.
    pub(crate) graph: Arc<Graph>,
    stage: Mutex<Stage>,
    closure: Closure,
    /// That of the closure.
    thread: OnceLock<ThreadId>,
    /// Set when the loss has been scaled; none if the closure need not see to that.
    scaled: Option<AtomicBool>,
    /// Hooks that are under way.
    hooks: AtomicUsize,
    /// If this is one of two passes of a step.
    pub(crate) rehearsal: Option<Arc<Rehearsal>>,
    course: Mutex<Course>,
    foresight: Option<Arc<dyn Foresight>>,
    /// If it is that of one of several ranks, which draw random numbers in turns: its turn in the forward pass.
    turn: Option<Mutex<Option<Turn>>>,
    /// Which of several ranks it is that of.
    pub(crate) membership: Option<Membership>,
}

impl Pass {
    pub(crate) fn new(
        plan: Plan,
        blocks: Blocks,
        closure: Closure,
        rehearsal: Option<Arc<Rehearsal>>,
        foresight: Option<Arc<dyn Foresight>>,
    ) -> Self {
        let stage = match closure {
            Closure::Loss => Stage::Forward,
            Closure::Backward | Closure::Nothing => Stage::Backward,
        };
        let scales = closure == Closure::Backward && plan.scale.is_some();
        Self {
            plan,
            blocks,
            graph: Arc::default(),
            stage: Mutex::new(stage),
            closure,
            thread: OnceLock::new(),
            scaled: scales.then(AtomicBool::default),
            hooks: AtomicUsize::new(0),
            rehearsal,
            course: Mutex::default(),
            foresight,
            turn: None,
            membership: None,
        }
    }

    /// This thread is in the pass until what is returned is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        let _ = self.thread.set(std::thread::current().id());
        Scope::of_step(self.clone()).enter()
    }

    /// Whether this is the thread that the closure is called on.
    pub(crate) fn has_closure_on(&self, thread: ThreadId) -> bool {
        self.thread.get() == Some(&thread)
    }

    /// The same as the pass of one of several ranks.
    pub(crate) fn of_rank(mut self, membership: Option<&Membership>) -> Self {
        if membership.is_some_and(|member| member.group.takes_turns()) {
            self.turn = Some(Mutex::default());
        }
        self.membership = membership.cloned();
        self
    }

    /// Its rank, if there are others.
    pub(crate) fn among_others(&self) -> Option<Membership> {
        let member = self.membership.as_ref();
        member.filter(|member| member.group.ranks() > 1).cloned()
    }

    /// Waits for the turn to draw random numbers, where several ranks do.
    ///
    /// # Panics
    ///
    /// If another group of ranks may wait for this one.
    pub(crate) fn take_turn(self: &Arc<Self>) -> Option<Turn> {
        let turn = self.try_take_turn();
        turn.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(super) fn try_take_turn(self: &Arc<Self>) -> Result<Option<Turn>, FusedError> {
        match (&self.turn, &self.membership) {
            (Some(_), Some(member)) => Turn::take(self, &member.group, member.device()).map(Some),
            _ => Ok(None),
        }
    }

    /// Takes the turn for the forward pass.
    pub(crate) fn begin_turn(self: &Arc<Self>) -> Result<(), FusedError> {
        if let Some(forward) = &self.turn {
            let turn = self.try_take_turn()?;
            *forward.lock() = turn;
        }
        Ok(())
    }

    /// The code of the user goes on, which may have a turn.
    pub(crate) fn show_life(self: &Arc<Self>) {
        if self.turn.is_some() {
            Turn::show_life(self);
        }
    }

    /// The forward pass is over.
    pub(crate) fn end_turn(&self) {
        if let Some(forward) = &self.turn {
            forward.lock().take();
        }
    }

    /// How far it is, locked.
    pub(crate) fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    /// The closure has computed its loss.
    pub(crate) fn enter_backward(&self) {
        self.end_turn();
        *self.stage.lock() = Stage::Backward;
    }

    /// Ends the pass with an error, if it has none yet.
    pub(crate) fn fail(&self, error: FusedError) {
        self.end_with(Failure::Error(error));
    }

    /// Ends the pass with an error in the use of a gradient.
    pub(crate) fn stop(&self, error: FusedError) {
        self.end_in_use(Failure::Error(error));
    }

    /// Whether the use of a gradient has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Failed(failed) if failed.in_use)
    }

    /// Ends the pass, if nothing has yet.
    pub(crate) fn end_with(&self, failure: Failure) {
        if let Some(failed) = self.stage.lock().failed() {
            failed.by.get_or_insert(failure);
        }
    }

    fn end_in_use(&self, failure: Failure) {
        if let Some(failed) = self.stage.lock().failed() {
            failed.by.get_or_insert(failure);
            failed.in_use = true;
        }
    }

    /// Does `work` in the middle of Burn's backward pass. A panic waits for the end of it, so that Burn lets
    /// go of the graph; where the closure runs the backward pass, it can't wait, since the closure goes on.
    pub(crate) fn guarded<R: Default>(&self, work: impl FnOnce() -> R) -> R {
        if self.closure == Closure::Backward {
            return work();
        }
        catch(work).unwrap_or_else(|panic| {
            if self.stage.lock().is_given_up() {
                panic.resume();
            }
            self.end_with(Failure::Panic(panic));
            R::default()
        })
    }

    /// Ends the pass with a panic that does not wait for the end of Burn's backward pass, which would never come.
    pub(crate) fn give_up(&self, reason: &str) -> ! {
        if let Some(failed) = self.stage.lock().failed() {
            failed.by = Some(Failure::GivenUp(reason.to_string()));
        }
        panic!("{reason}")
    }

    /// Uses a gradient on another thread than the one that runs the backward pass. A panic ends the pass.
    pub(crate) fn guarded_in_queue(&self, use_gradient: impl FnOnce()) {
        if let Err(panic) = catch(use_gradient) {
            self.end_in_use(Failure::Panic(panic));
        }
    }

    /// A block that is in no other begins to run, for the first or for the second time.
    pub(crate) fn enter_block(&self, block: usize) {
        let run = self.course.lock().begin(block);
        if let Some(foresight) = &self.foresight {
            foresight.run_begins(run);
        }
    }

    /// From where the weights of blocks come over, if any wait.
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.foresight.as_deref()?.placement()
    }

    /// Such a block has run for the first time.
    pub(crate) fn leave_first_run(&self, block: usize, readers: &Readers) {
        let reads = readers.ids();
        if let Some(foresight) = &self.foresight {
            foresight.first_run_is_over(&reads);
        }
        self.course.lock().has_read(block, reads);
    }

    /// The course that the pass has taken.
    pub(crate) fn course(&self) -> Course {
        self.course.lock().clone()
    }

    /// Whether a gradient may still be used.
    pub(crate) fn admits(&self) -> bool {
        let unscaled = |scaled: &AtomicBool| !scaled.load(Ordering::Relaxed);
        if self.scaled.as_ref().is_some_and(unscaled) {
            self.fail(FusedError::LossNotScaled);
        }
        !self.has_failed()
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Failed(_))
    }

    /// What has ended the pass, if it has not been taken yet.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        match &mut *self.stage.lock() {
            Stage::Failed(failed) => failed.by.take(),
            _ => None,
        }
    }

    /// Goes on with the failure that has ended the pass, if one has.
    pub(crate) fn check(&self) -> Result<(), FusedError> {
        self.take_failure().map_or(Ok(()), Failure::go_on)
    }

    /// Calls a hook for the parameter of this path.
    pub(crate) fn call_hook<R>(self: &Arc<Self>, path: &str, hook: impl FnOnce() -> R) -> R {
        lock::check_none_held("a hook is called");
        let _counted = Counted::one_in(&self.hooks);
        let _scope = Scope::hook(self, path).enter();
        hook()
    }

    /// Whether a hook is under way, on whichever thread.
    pub(crate) fn is_in_hook(&self) -> bool {
        self.hooks.load(Ordering::Relaxed) > 0
    }

    /// What the closure has to multiply its loss by, which now counts as done.
    fn take_scale(&self) -> Option<f64> {
        self.scaled.as_ref()?.store(true, Ordering::Relaxed);
        self.plan.scale
    }
}
