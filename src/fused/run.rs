//! One pass of a fused optimizer.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use super::work;
use crate::device::{caught, check_connected};
use crate::error::FusedError;
use crate::loss::Loss;
use crate::memory;
use crate::offload::Placement;
use crate::pass::{Closure, Pass, Rehearsal};
use crate::policy::{Goal, Plan};
use crate::report::StepReport;
use crate::slot::{FusedForm, SlotReport};

/// What a pass is to do.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) plan: Plan,
    /// If it is one of two.
    pub(super) rehearsal: Option<Arc<Rehearsal>>,
}

impl From<Plan> for Order {
    fn from(plan: Plan) -> Self {
        Self {
            plan,
            rehearsal: None,
        }
    }
}

impl<M: Module> FusedOptimizer<M> {
    /// A pass whose closure returns the loss.
    pub(super) fn pass_of_loss<L: Loss>(
        &mut self,
        order: Order,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<L, FusedError> {
        let retained = self.form.inventory().retained();
        let goal = order.plan.goal;
        let loss = self.run(Closure::Loss, order, |model, pass| {
            work::there_and_back(model, pass, &retained, 0, forward)
        })?;

        if goal != Goal::Measure {
            self.check_reached()?;
        }
        Ok(loss)
    }

    /// Refuses a pass whose loss has reached no parameter, and that had nothing else to use.
    pub(super) fn check_reached(&self) -> Result<(), FusedError> {
        let parameters = self.form.trained();
        match self.report.updated == 0 && self.report.without_gradient == parameters {
            true => Err(FusedError::LossWithoutParameters { parameters }),
            false => Ok(()),
        }
    }

    /// A pass whose closure returns the gradients of the parameters that are ordinary leaves.
    ///
    /// It ends well or not at all: where there is an error, or a panic, what has been accumulated is that of before, but
    /// for sums that were overwritten, which are lost. (What the optimizer state has taken stays.)
    pub(super) fn run<R>(
        &mut self,
        closure: Closure,
        order: Order,
        work: impl FnOnce(&M, &Arc<Pass>) -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        self.report = StepReport::default();
        let goal = order.plan.goal;
        let foresight = self.foresight();
        let choice = self.config.gradient_checkpointing.choice();
        let running = work::begin(&self.session, closure, order, choice, foresight);
        let mut ending = Ending::of([&mut self.form]);
        let in_flight = InFlight(ending.form(0).placement());
        if memory::is_recording() {
            let slots = ending.form(0).slots();
            slots.iter().for_each(|slot| slot.show());
        }
        memory::enter(memory::Phase::Forward);
        let output = {
            let _scope = running.pass.enter();
            let (output, gradients) = work(&ending.form(0).module, &running.pass)?;
            drop(in_flight);
            ending.form(0).slots().flush(&running.pass)?;
            ending.deliver(goal, [(&running.pass, gradients)]);
            running.pass.check()?;
            output
        };
        let ended = ending.well();
        self.learn_course(running.pass.course());
        drop(running);
        self.report_on(ended);
        check_connected(|| self.form.module.devices())?;
        if goal == Goal::Update {
            work::check_written([&self.form])?;
        }
        Ok(output)
    }

    pub(super) fn report_on(&mut self, ended: Vec<(ParamId, SlotReport)>) {
        let count = |what: fn(&SlotReport) -> bool| {
            let slots = ended.iter().filter(|(_, slot)| what(slot));
            slots.count()
        };
        let updated = count(|slot| slot.updated);
        let tells = count(|slot| slot.copied.is_some()) == updated;
        let received = count(|slot| slot.received);
        let report = StepReport {
            updated,
            vetoed: count(|slot| slot.vetoed),
            copied: tells.then(|| count(|slot| slot.copied == Some(true))),
            without_gradient: self.form.trained().saturating_sub(received),
            gradients_alive: self.session.census().map(|census| census.take()),
            ..StepReport::default()
        };
        for (id, slot) in ended {
            if !slot.received && self.told.insert(id) {
                let path = self.form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.report = report;
    }

    /// Whether a step has gradients to use before its pass.
    pub(super) fn has_accumulated(&self) -> bool {
        let mut slots = self.form.slots().iter();
        slots.any(|slot| slot.has_accumulated())
    }

    /// Drops the gradients that [`accumulate`](Self::accumulate) has added up since the last step.
    ///
    /// Those that are in the optimizer state already
    /// ([`accumulating_in_state`](Self::accumulating_in_state)) stay there.
    pub fn drop_accumulated(&mut self) {
        let slots = self.form.slots().iter();
        slots.for_each(|slot| slot.drop_accumulated());
    }

    /// Drops accumulated gradients that no step can use, since they are not finite.
    pub(super) fn drop_accumulated_if_not_finite(&mut self) {
        let slots = self.form.slots();
        let are_finite = caught(|| slots.iter().all(|slot| slot.accumulated_is_finite()));
        // Of a device that is lost nobody knows.
        if are_finite == Ok(false) {
            log::warn!(
                "the accumulated gradients are not finite, so no step can use them: they are dropped"
            );
            self.drop_accumulated();
        }
    }
}

/// Waits, when dropped, for what is on its way between device and host.
struct InFlight(Option<Arc<Placement>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(placement) = &self.0 {
            placement.wait();
        }
    }
}

/// A pass under way in the forms of all ranks. When dropped, it ends in every slot, as one that has not ended well, and
/// the leaves of the modules have the values that their slots have then.
pub(super) struct Ending<'a, M: Module>(Vec<&'a mut FusedForm<M>>);

impl<'a, M: Module> Ending<'a, M> {
    pub(super) fn of(forms: impl IntoIterator<Item = &'a mut FusedForm<M>>) -> Self {
        Self(forms.into_iter().collect())
    }

    pub(super) fn form(&self, rank: usize) -> &FusedForm<M> {
        self.0[rank]
    }

    /// Uses the gradients of the parameters that are ordinary leaves, of every rank in its pass.
    pub(super) fn deliver<'p>(
        &mut self,
        goal: Goal,
        gradients: impl IntoIterator<Item = (&'p Arc<Pass>, GradientsParams)>,
    ) {
        if goal == Goal::Update {
            self.0.iter_mut().for_each(|form| form.let_go_of_leaves());
        }
        for (form, (pass, gradients)) in self.0.iter().zip(gradients) {
            pass.guarded_in_queue(|| form.slots().deliver(pass, gradients));
        }
    }

    /// What has happened to each parameter, on all ranks together.
    pub(super) fn well(self) -> Vec<(ParamId, SlotReport)> {
        let mut reports = HashMap::<ParamId, SlotReport>::new();
        for (id, report) in self.0.iter().flat_map(|form| form.slots().end(true)) {
            let others = reports.remove(&id).unwrap_or_default();
            reports.insert(id, others.and(report));
        }
        reports.into_iter().collect()
    }
}

impl<M: Module> Drop for Ending<'_, M> {
    fn drop(&mut self) {
        let slots = self.0.iter().map(|form| form.slots());
        slots.for_each(|slots| drop(slots.end(false)));
        self.0.iter_mut().for_each(|form| form.renew_leaves());
        memory::enter(memory::Phase::Other);
    }
}
