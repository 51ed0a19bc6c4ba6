//! One pass of a fused optimizer.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use super::{retained, work};
use crate::device::check_connected;
use crate::error::FusedError;
use crate::loss::Loss;
use crate::memory;
use crate::offload::Placement;
use crate::pass::{Closure, Pass, Rehearsal};
use crate::policy::{Goal, Plan};
use crate::report::StepReport;
use crate::slot::{SlotReport, Slots};

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
    /// It ends well or not at all: where there is an error, or a panic, all that has been accumulated is
    /// that of before, or dropped where a sum was overwritten. (What the optimizer state has taken stays.)
    pub(super) fn run<R>(
        &mut self,
        closure: Closure,
        order: Order,
        work: impl FnOnce(&M, &Arc<Pass>) -> Result<(R, GradientsParams), FusedError>,
    ) -> Result<R, FusedError> {
        self.report = StepReport::default();
        let plan = order.plan.clone();
        let foresight = self.foresight();
        let choice = self.gradient_checkpointing.choice();
        let running = work::begin(&self.session, closure, order, choice, foresight);
        let ending = Ending(vec![self.form.slots().clone()]);
        let in_flight = InFlight(self.form.placement());
        self.prepare(&plan);
        if memory::is_recording() {
            self.form.slots().iter().for_each(|slot| slot.show());
        }
        memory::enter(memory::Phase::Forward);
        let (output, gradients) = {
            let _scope = running.pass.enter();
            let output = work(&self.form.module, &running.pass)?;
            drop(in_flight);
            self.form.slots().flush(&running.pass)?;
            output
        };
        let mut report = StepReport::default();
        let received = gradients.len();
        self.use_retained(&plan, vec![gradients], &mut report)?;
        let ended = ending.well();
        self.learn_course(running.pass.course());
        drop(running);
        self.report_on(ended, received, report);
        check_connected(|| self.form.module.devices())?;
        if plan.goal == Goal::Update {
            work::check_written([&self.form])?;
        }
        Ok(output)
    }

    /// Keeps what an optimizer that panics in the pass could take along.
    pub(super) fn prepare(&self, plan: &Plan) {
        if plan.goal == Goal::Update {
            let limit = self.policies.state_backup.limit;
            self.session.update().back_up(self.form.at_risk(limit));
        }
    }

    pub(super) fn report_on(
        &mut self,
        ended: Vec<(ParamId, SlotReport)>,
        retained: usize,
        mut report: StepReport,
    ) {
        let count = |what: fn(&SlotReport) -> bool| {
            let slots = ended.iter().filter(|(_, slot)| what(slot));
            slots.count()
        };
        let received = count(|slot| slot.received) + retained;
        let updated = count(|slot| slot.updated);
        let tells = count(|slot| slot.copied.is_some()) == updated;
        report.updated += updated;
        report.vetoed += count(|slot| slot.vetoed);
        report.copied = tells.then(|| count(|slot| slot.copied == Some(true)));
        report.without_gradient = self.form.trained().saturating_sub(received);
        report.gradients_alive = self.session.census().map(|census| census.take());
        for (id, slot) in ended {
            if !slot.received && self.told.insert(id) {
                let path = self.form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.report = report;
    }

    /// Does with the gradients of the parameters that are ordinary leaves, in the order of their sum, what the pass
    /// is for.
    pub(super) fn use_retained(
        &mut self,
        plan: &Plan,
        gradients: Vec<GradientsParams>,
        report: &mut StepReport,
    ) -> Result<(), FusedError> {
        let module = &self.form.module;
        let inventory = self.form.inventory();
        let sums = self.retained_gradients.get_mut();
        let gradients = retained::sum(module, plan, sums, gradients);
        if plan.goal == Goal::Accumulate {
            *sums = gradients;
            return Ok(());
        }
        let arrived = gradients.len();
        let gradients = retained::call_hooks(module, inventory, plan, gradients)?;
        if plan.goal == Goal::Measure {
            return Ok(());
        }
        report.vetoed += arrived - gradients.len();
        report.updated += gradients.len();
        let stepped = {
            let mut update = self.session.update();
            retained::step(module, inventory, gradients, &mut update)
        };
        self.form.module = stepped.module;
        if let Some(panic) = stepped.panic {
            resume_unwind(panic);
        }
        *self.retained_gradients.get_mut() = GradientsParams::new();
        Ok(())
    }

    /// Whether a step has gradients to use before its pass.
    pub(super) fn has_accumulated(&mut self) -> bool {
        let mut slots = self.form.slots().iter();
        !self.retained_gradients.get_mut().is_empty() || slots.any(|slot| slot.has_accumulated())
    }

    /// Drops the gradients that [`accumulate`](Self::accumulate) has added up since the last step.
    ///
    /// Those that are in the optimizer state already
    /// ([`accumulating_in_state`](Self::accumulating_in_state)) stay there.
    pub fn drop_accumulated(&mut self) {
        let slots = self.form.slots().iter();
        slots.for_each(|slot| slot.drop_accumulated());
        *self.retained_gradients.get_mut() = GradientsParams::new();
    }

    /// Drops accumulated gradients that no step can use, since they are not finite.
    pub(super) fn drop_accumulated_if_not_finite(&mut self) {
        let slots = self.form.slots();
        let in_slots = slots.iter().all(|slot| slot.accumulated_is_finite());
        let retained = self.retained_gradients.get_mut();
        if !in_slots || !retained::are_finite(&self.form.module, retained) {
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

/// Ends a pass in every slot of every rank, when dropped as one that has not ended well.
pub(super) struct Ending(pub(super) Vec<Arc<Slots>>);

impl Ending {
    /// What has happened to each parameter, on all ranks together.
    pub(super) fn well(self) -> Vec<(ParamId, SlotReport)> {
        let mut reports = HashMap::<ParamId, SlotReport>::new();
        for (id, report) in self.0.iter().flat_map(|slots| slots.end(true)) {
            let others = reports.remove(&id).unwrap_or_default();
            reports.insert(id, others.and(report));
        }
        reports.into_iter().collect()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let ended = self.0.iter().flat_map(|slots| slots.end(false));
        // All of them, whatever is found.
        let overwritten = ended.filter(|(_, slot)| slot.overwritten).count() > 0;
        if let (true, Some(slots)) = (overwritten, self.0.first()) {
            slots.drop_overwritten();
        }
        memory::enter(memory::Phase::Other);
    }
}
