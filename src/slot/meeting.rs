//! Where the gradients of a parameter meet that several replicas have.

use std::sync::{Arc, Weak};

use burn::module::ParamId;
use burn::tensor::Tensor;
use parking_lot::Mutex;

use super::parameter::{ParameterSlot, State};
use super::stage::{Outcome, Stage};
use crate::error::FusedError;
use crate::pass::Pass;
use crate::policy::Goal;
use crate::replica::{Group, Hold};
use crate::tap;

/// The part that one rank has in a parameter.
#[derive(Debug)]
pub(super) struct Share<const D: usize> {
    rank: usize,
    meeting: Arc<Meeting<D>>,
}

/// What all ranks share of a parameter.
#[derive(Debug)]
pub(super) struct Meeting<const D: usize> {
    group: Arc<Group>,
    owner: usize,
    /// Of all ranks.
    slots: Vec<Weak<ParameterSlot<D>>>,
    answers: Mutex<Answers<D>>,
}

/// What the ranks have said in a pass.
#[derive(Debug)]
struct Answers<const D: usize> {
    given: usize,
    /// By rank, on the device of the owner.
    gradients: Vec<Option<Held<D>>>,
}

/// A gradient that is counted with what the owner holds.
#[derive(Debug)]
struct Held<const D: usize> {
    gradient: Tensor<D>,
    hold: Hold,
}

impl<const D: usize> Answers<D> {
    fn none(ranks: usize) -> Self {
        Self {
            given: 0,
            gradients: (0..ranks).map(|_| None).collect(),
        }
    }
}

impl<const D: usize> Meeting<D> {
    /// Lets slots of the same parameter, one a rank, share it.
    pub(super) fn of(slots: &[Arc<ParameterSlot<D>>], group: &Arc<Group>) {
        let Some(first) = slots.first() else { return };
        let meeting = Arc::new(Self {
            group: group.clone(),
            owner: group.owner(first.id),
            slots: slots.iter().map(Arc::downgrade).collect(),
            answers: Mutex::new(Answers::none(slots.len())),
        });
        for (rank, slot) in slots.iter().enumerate() {
            let meeting = meeting.clone();
            let share = slot.share.set(Share { rank, meeting });
            share.expect("a slot is shared once");
        }
    }

    fn slot(&self, rank: usize) -> Option<Arc<ParameterSlot<D>>> {
        self.slots[rank].upgrade()
    }

    /// Notes what a rank has, and returns the gradients in the order of their sum when all have answered.
    fn answer(&self, id: ParamId, rank: usize, gradient: Option<Held<D>>) -> Option<Vec<Held<D>>> {
        let mut answers = self.answers.lock();
        answers.given += 1;
        answers.gradients[rank] = gradient;
        let ranks = self.slots.len();
        if answers.given < ranks {
            return None;
        }
        let answers = std::mem::replace(&mut *answers, Answers::none(ranks));
        Some(self.group.in_order(id, answers.gradients))
    }
}

impl<const D: usize> ParameterSlot<D> {
    /// Gives the owner what this rank has of the gradient; the last one to do so uses the sum.
    pub(super) fn share_gradient(
        &self,
        share: &Share<D>,
        pass: &Arc<Pass>,
        gradient: Option<Tensor<D>>,
    ) {
        let Share { rank, meeting } = share;
        let received = gradient.is_some();
        let hold = received.then(|| self.count_arrival(share));
        let carried = gradient.map(|gradient| meeting.group.carry(gradient, meeting.owner));
        let gradient = match carried.transpose() {
            Ok(gradient) => gradient,
            Err(reason) => {
                pass.stop(FusedError::Transfer {
                    path: self.path.clone(),
                    reason,
                });
                return self.finish(Outcome::Dropped);
            }
        };
        let outdated = pass.plan.goal == Goal::Update && *rank != meeting.owner;
        self.finish_sharing(meeting, Outcome::Shared { received, outdated });
        let held = gradient.zip(hold);
        let held = held.map(|(gradient, hold)| Held { gradient, hold });
        if let Some(gradients) = meeting.answer(self.id, *rank, held) {
            meeting.use_sum(gradients);
        }
        if received {
            let device = meeting.group.device(*rank);
            let waits = meeting.group.has_sent(*rank, || !tap::is_free(device));
            if waits.is_err() {
                pass.give_up(
                    "it waits in its backward pass for a rank that waits for it: both compute with one tracked tensor, so \
                     that Burn joins their autodiff graphs, and locks both. Detach what the closure has captured, and give \
                     every rank a tensor of its own",
                );
            }
        }
    }

    /// Counts a gradient that has arrived on this rank, and is held by the owner from here on.
    fn count_arrival(&self, Share { rank, meeting }: &Share<D>) -> Hold {
        let bytes = self.likeness().bytes();
        if *rank != meeting.owner {
            drop(meeting.group.hold(*rank, bytes));
        }
        meeting.group.hold(meeting.owner, bytes)
    }

    /// Counts the value as held by this rank, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self) -> Option<Hold> {
        let Share { rank, meeting } = self.share.get()?;
        let is_gathered = *rank != meeting.owner && !meeting.group.replicates_weights();
        is_gathered.then(|| meeting.group.hold(*rank, self.likeness().bytes()))
    }

    /// The rank has nothing to do with the gradient any more. It gives up an outdated value that the owner, on the same device,
    /// could not write in place otherwise; one on a device of its own it keeps until the new one comes, for the owner may be lost.
    fn finish_sharing(&self, meeting: &Meeting<D>, shared: Outcome<D>) {
        let mut state = self.state.lock();
        let outdated = matches!(shared, Outcome::Shared { outdated: true, .. });
        if outdated && self.likeness().device == *meeting.group.device(meeting.owner) {
            state.value = None;
        }
        state.stage = Stage::Complete(shared);
    }

    /// The value as the owner of the parameter has it, on the device of this rank; `None` if that is the owner, or the owner
    /// has none.
    pub(super) fn value_of_owner(&self) -> Option<Result<Tensor<D>, FusedError>> {
        let Share { rank, meeting } = self.share.get()?;
        if *rank == meeting.owner {
            return None;
        }
        let value = meeting.slot(meeting.owner)?.state.lock().value.clone()?;
        let carried = meeting.group.carry(value, *rank);
        Some(carried.map_err(|reason| {
            let path = self.path.clone();
            FusedError::Transfer { path, reason }
        }))
    }

    /// Whether this is the slot that owns the parameter.
    pub(super) fn is_owner(&self) -> bool {
        let share = self.share.get();
        share.is_none_or(|share| share.rank == share.meeting.owner)
    }

    /// Looks at the state of the slot that owns the parameter.
    pub(super) fn at_owner<R>(&self, look: impl FnOnce(&mut State<D>) -> R) -> R {
        let owner = self
            .share
            .get()
            .filter(|share| share.rank != share.meeting.owner);
        let owner = owner.and_then(|share| share.meeting.slot(share.meeting.owner));
        match owner {
            Some(owner) => look(&mut owner.state.lock()),
            None => look(&mut self.state.lock()),
        }
    }

    /// The pass is over: forgets what has arrived, and takes the value that the owner has now.
    pub(super) fn leave_meeting(&self) {
        let Some(Share { meeting, .. }) = self.share.get() else {
            return;
        };
        *meeting.answers.lock() = Answers::none(meeting.slots.len());
        let state = self.state.lock();
        let outdated = match &state.stage {
            Stage::Complete(Outcome::Shared { outdated, .. }) => *outdated,
            _ => false,
        };
        let comes_back = outdated || state.value.is_none();
        drop(state);
        if meeting.group.replicates_weights() && comes_back {
            // Where it can't be had, what was there before stays, or who reads it is told why.
            let value = self.value_of_owner().and_then(Result::ok);
            let mut state = self.state.lock();
            state.value = value.or(state.value.take());
        }
    }
}

impl<const D: usize> Meeting<D> {
    /// Lets the owner do with the gradients of all ranks what the pass is for. What goes wrong there ends the pass of
    /// the owner.
    fn use_sum(&self, gradients: Vec<Held<D>>) {
        let Some(owner) = self.slot(self.owner) else {
            return;
        };
        let Some(pass) = owner.session.pass() else {
            return;
        };
        match pass.is_stopped() || self.group.failed().is_some() {
            true => owner.finish(Outcome::Dropped),
            false => {
                let (gradients, holds): (Vec<_>, Vec<_>) = gradients
                    .into_iter()
                    .map(|held| (held.gradient, held.hold))
                    .unzip();
                pass.guarded_in_queue(|| owner.use_gradients(&pass, gradients));
                drop(holds);
                if pass.is_stopped() {
                    // No other gradient is used, whichever rank it comes from.
                    self.group.fail(self.owner);
                }
            }
        }
    }
}
