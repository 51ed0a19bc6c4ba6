//! One pass of all ranks, from its begin to its end.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::ranks::{Rank, Ranks};
use super::reports::Reports;
use super::statistics::SharedStatistics;
use crate::device::{Written, check_written};
use crate::error::FusedError;
use crate::layout::Layout;
use crate::loss::{Loss, Told};
use crate::memory;
use crate::offload::Placement;
use crate::pass::{BlockChoice, Closure, Pass, Rehearsal, Running, Session};
use crate::policy::{Goal, Plan};
use crate::replica::Membership;
use crate::report::StepReport;
use crate::weights::{ParameterReport, Views};

/// What a pass is to do.
#[derive(Clone)]
pub(super) struct Order<'a> {
    pub(super) plan: Plan,
    /// If it is one of two.
    pub(super) rehearsal: Option<Arc<Rehearsal>>,
    /// What the closure of each rank does.
    pub(super) closures: &'a [Closure],
    pub(super) choice: BlockChoice,
}

/// What the closure of a rank gives, with the gradients of the parameters that are ordinary leaves.
pub(in crate::fused) type Worked<R> = Result<(R, GradientsParams), FusedError>;

/// The same of all ranks.
pub(in crate::fused) type Computed<R> = Result<(R, Vec<GradientsParams>), FusedError>;

impl<M: Module> Ranks<M> {
    /// A pass. `compute` has every rank [compute](RankPass::compute) with its model.
    ///
    /// It ends well on all ranks or on none: where there is an error, or a panic, what has been accumulated is that of
    /// before, but for sums that were overwritten, which are lost. (What the optimizer state has taken stays.)
    pub(super) fn pass<R>(
        &mut self,
        reports: &mut Reports,
        order: Order<'_>,
        compute: impl FnOnce(Vec<(RankPass, &M)>) -> Computed<R>,
    ) -> Result<R, FusedError> {
        if self.all.len() == 1 {
            return self.pass_once(reports, order, compute);
        }
        let goal = order.plan.goal;
        let statistics = SharedStatistics::before(self, order.rehearsal.is_some(), order.closures);
        let ended = self.pass_once(reports, order, compute);
        statistics.after(self, goal, ended)
    }

    fn pass_once<R>(
        &mut self,
        reports: &mut Reports,
        order: Order<'_>,
        compute: impl FnOnce(Vec<(RankPass, &M)>) -> Computed<R>,
    ) -> Result<R, FusedError> {
        reports.last = StepReport::default();
        let goal = order.plan.goal;

        // Begin.
        let ranks = self.all.iter().zip(order.closures);
        let running: Vec<_> = ranks
            .map(|(rank, closure)| rank.begin(&order, *closure))
            .collect();
        let mut ending = Ending(&mut self.all);
        if memory::is_recording() {
            ending.0[0]
                .form
                .views()
                .homes()
                .for_each(|home| home.show());
        }

        // Forward and backward, and what the backward pass has left.
        memory::enter(memory::Phase::Forward);
        let ranks = ending.0.iter().zip(&running);
        let (output, gradients) =
            compute(ranks.map(|(rank, running)| rank.part(running)).collect())?;
        check(&running)?;
        ending.deliver(goal, &running, gradients);
        check(&running)?;

        // Commit; whoever has left before has rolled back.
        let reports_of = ending.well();
        for (rank, running) in self.all.iter_mut().zip(&running) {
            rank.form.learn_course(running.pass.course());
        }
        drop(running);
        let census = self.session().census();
        reports.tell(self.form(), reports_of, census.map(|census| census.take()));
        // What others have sent a rank since it was through.
        self.check_connected()?;
        if goal == Goal::Update {
            self.check_written()?;
        }
        Ok(output)
    }

    /// Refuses values that their device has not computed.
    fn check_written(&self) -> Result<(), FusedError> {
        let mut written = Written::new();
        let views = self.all.iter().flat_map(|rank| rank.form.views().iter());
        views.for_each(|view| view.ask_written(&mut written));
        written.answer()
    }
}

/// Goes on with what has ended a pass, if something has: of several ranks with what was the first.
fn check(running: &[Running]) -> Result<(), FusedError> {
    let Some(Membership { group, .. }) = &running[0].pass.membership else {
        return running[0].pass.check();
    };
    let passes = running.iter().map(|running| &running.pass).enumerate();
    let failures = passes
        .filter_map(|(rank, pass)| Some((rank, pass.rehearsal.is_some(), pass.take_failure()?)));
    let first = group.flow.failed();
    match failures.min_by_key(|(rank, ..)| (Some(*rank) != first, *rank)) {
        None => Ok(()),
        Some((rank, repeated, failure)) => Err(failure.on_rank(rank, group.device(rank), repeated)),
    }
}

impl<M: Module> Rank<M> {
    fn begin(&self, order: &Order<'_>, closure: Closure) -> Running {
        let layout = self.form.layout();
        let rehearsal = order.rehearsal.clone();
        let blocks = self
            .session
            .blocks(order.choice.clone(), rehearsal.as_deref(), layout.rank());
        let pass = Pass::new(
            order.plan.clone(),
            blocks,
            closure,
            rehearsal,
            self.form.foresight(),
        );
        self.session.begin(pass.of_rank(layout.member()))
    }

    fn part(&self, running: &Running) -> (RankPass, &M) {
        let part = RankPass {
            pass: running.pass.clone(),
            session: self.session.clone(),
            views: self.form.views().clone(),
            layout: self.form.layout().clone(),
        };
        (part, &self.form.module)
    }
}

/// The part of one rank in a pass that has begun, on whichever thread.
#[derive(Clone)]
pub(in crate::fused) struct RankPass {
    pub(in crate::fused) pass: Arc<Pass>,
    pub(in crate::fused) session: Arc<Session>,
    views: Arc<Views>,
    layout: Arc<Layout>,
}

impl RankPass {
    /// Does the `work` of a closure, and uses what the backward pass has left then.
    pub(in crate::fused) fn compute<R>(&self, work: impl FnOnce() -> Worked<R>) -> Worked<R> {
        let in_flight = self.layout.placement().map(|placement| InFlight(placement));
        let _scope = self.pass.enter();
        let worked = work()?;
        drop(in_flight);
        self.views.flush(&self.pass);
        Ok(worked)
    }

    /// Which of several ranks it is that of.
    pub(in crate::fused) fn member(&self) -> &Membership {
        self.layout.member().expect("there are several")
    }

    /// Computes the loss, and the gradients back from it.
    pub(in crate::fused) fn there_and_back<M: Module, L: Loss>(
        &self,
        model: &M,
        forward: impl FnOnce(&M) -> L,
    ) -> Worked<L> {
        let loss = forward(model);
        // A backward pass inside of the closure has failed in a block, and gone on.
        self.pass.check()?;
        if !loss.has_graph() {
            return Err(FusedError::LossNotTracked);
        }
        check_written(&loss.numbers()).map_err(|reason| FusedError::LossNotComputed { reason })?;
        if let Some(rehearsal) = &self.pass.rehearsal
            && !rehearsal.agrees(self.layout.rank(), &loss)
        {
            return Err(FusedError::other_passes());
        }
        self.pass.enter_backward();
        let begins = self.pass.among_others().map(|Membership { group, rank }| {
            group.flow.ready(rank);
            Box::new(move || group.flow.begun(rank)) as Told
        });
        memory::enter(memory::Phase::Backward);
        let (loss, mut gradients) = loss.go_back(self.pass.plan.scale, begins);
        let gradients = GradientsParams::from_params(&mut gradients, model, self.views.leaves());
        Ok((loss, gradients))
    }
}

/// Waits, when dropped, for what is on its way between a device and the host.
struct InFlight<'a>(&'a Placement);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// A pass under way. When dropped, it ends in every view and home as one that has not ended well, and the leaves of the
/// modules have the values that their homes have then.
struct Ending<'a, M: Module>(&'a mut [Rank<M>]);

impl<M: Module> Ending<'_, M> {
    /// Uses the gradients of the parameters that are ordinary leaves, of every rank in its pass.
    fn deliver(&mut self, goal: Goal, running: &[Running], gradients: Vec<GradientsParams>) {
        if goal == Goal::Update {
            self.0
                .iter_mut()
                .for_each(|rank| rank.form.let_go_of_leaves());
        }
        for ((rank, running), gradients) in self.0.iter().zip(running).zip(gradients) {
            let pass = &running.pass;
            pass.guarded_in_queue(|| rank.form.views().deliver(pass, gradients));
        }
    }

    /// What has happened to each parameter, on all ranks together.
    fn well(self) -> Vec<(ParamId, ParameterReport)> {
        let mut reports = HashMap::<ParamId, ParameterReport>::new();
        for (id, report) in self.0.iter().flat_map(|rank| rank.form.views().end(true)) {
            let others = reports.remove(&id).unwrap_or_default();
            reports.insert(id, others.and(report));
        }
        reports.into_iter().collect()
    }
}

impl<M: Module> Drop for Ending<'_, M> {
    fn drop(&mut self) {
        let views = self.0.iter().map(|rank| rank.form.views());
        views.for_each(|views| drop(views.end(false)));
        self.0.iter_mut().for_each(|rank| rank.form.renew_leaves());
        memory::enter(memory::Phase::Other);
    }
}
