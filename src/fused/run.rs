//! One pass of a fused optimizer.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::FusedOptimizer;
use super::work::{self, InFlight};
use crate::device::{caught, check_connected};
use crate::error::FusedError;
use crate::loss::Loss;
use crate::memory;
use crate::pass::{Closure, Pass, Rehearsal};
use crate::policy::{Goal, Plan};
use crate::report::StepReport;
use crate::weights::{FusedForm, Left, ParameterReport};

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
        let choice = self.config.gradient_checkpointing.choice();
        let running = work::begin(&self.session, &self.form, closure, order, choice);
        let mut ending = Ending::of([&mut self.form]);
        let in_flight = InFlight::of(ending.form(0).layout());
        if memory::is_recording() {
            let views = ending.form(0).views();
            views.homes().for_each(|home| home.show());
        }
        memory::enter(memory::Phase::Forward);
        let output = {
            let _scope = running.pass.enter();
            let (output, gradients) = work(&ending.form(0).module, &running.pass)?;
            drop(in_flight);
            ending.form(0).views().flush(&running.pass)?;
            ending.deliver(goal, [(&running.pass, gradients)]);
            running.pass.check()?;
            output
        };
        let ended = ending.well();
        self.form.learn_course(running.pass.course());
        drop(running);
        self.report_on(ended);
        check_connected(|| self.form.module.devices())?;
        if goal == Goal::Update {
            work::check_written([&self.form])?;
        }
        Ok(output)
    }

    pub(super) fn report_on(&mut self, ended: Vec<(ParamId, ParameterReport)>) {
        let count = |what: fn(&ParameterReport) -> bool| {
            let parameters = ended.iter().filter(|(_, report)| what(report));
            parameters.count()
        };
        let updated = count(|of| of.updated);
        let tells = count(|of| of.copied.is_some()) == updated;
        let received = count(|of| of.received);
        let report = StepReport {
            updated,
            vetoed: count(|of| of.vetoed),
            copied: tells.then(|| count(|of| of.copied == Some(true))),
            without_gradient: self.form.trained().saturating_sub(received),
            gradients_alive: self.session.census().map(|census| census.take()),
            ..StepReport::default()
        };
        for (id, of) in ended {
            if !of.received && self.told.insert(id) {
                let path = self.form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.report = report;
    }

    /// Whether a step has gradients to use before its pass.
    pub(super) fn has_accumulated(&self) -> bool {
        let mut homes = self.form.views().homes();
        homes.any(|home| home.left() != Left::Nothing)
    }

    /// Drops the gradients that [`accumulate`](Self::accumulate) has added up since the last step.
    ///
    /// Those that are in the optimizer state already
    /// ([`accumulating_in_state`](Self::accumulating_in_state)) stay there.
    pub fn drop_accumulated(&mut self) {
        let homes = self.form.views().homes();
        homes.for_each(|home| home.drop_sum());
    }

    /// Drops accumulated gradients that no step can use, since they are not finite.
    pub(super) fn drop_accumulated_if_not_finite(&mut self) {
        let views = self.form.views();
        let are_finite = caught(|| views.homes().all(|home| home.sum_is_finite()));
        // Of a device that is lost nobody knows.
        if are_finite == Ok(false) {
            log::warn!(
                "the accumulated gradients are not finite, so no step can use them: they are dropped"
            );
            self.drop_accumulated();
        }
    }
}

/// A pass under way in the forms of all ranks. When dropped, it ends in every view and home, as one that has not
/// ended well, and the leaves of the modules have the values that their homes have then.
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
            pass.guarded_in_queue(|| form.views().deliver(pass, gradients));
        }
    }

    /// What has happened to each parameter, on all ranks together.
    pub(super) fn well(self) -> Vec<(ParamId, ParameterReport)> {
        let mut reports = HashMap::<ParamId, ParameterReport>::new();
        for (id, report) in self.0.iter().flat_map(|form| form.views().end(true)) {
            let others = reports.remove(&id).unwrap_or_default();
            reports.insert(id, others.and(report));
        }
        reports.into_iter().collect()
    }
}

impl<M: Module> Drop for Ending<'_, M> {
    fn drop(&mut self) {
        let views = self.0.iter().map(|form| form.views());
        views.for_each(|views| drop(views.end(false)));
        self.0.iter_mut().for_each(|form| form.renew_leaves());
        memory::enter(memory::Phase::Other);
    }
}
