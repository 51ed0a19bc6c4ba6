//! One pass of all ranks, from its begin to its end.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;

use super::rank_pass::{RankPass, Task};
use super::ranks::{Rank, Ranks};
use crate::device::{Written, check_connected};
use crate::error::FusedError;
use crate::memory;
use crate::pass::{Order, Running};
use crate::policy::Goal;
use crate::replica::Group;
use crate::report::StepReport;
use crate::weights::{FusedForm, ParameterReport};

impl<M: Module> Ranks<M> {
    /// A pass.
    ///
    /// It ends well on all ranks or on none: where there is an error, or a panic, what has been accumulated is that of
    /// before, but for sums that were overwritten, which are lost. (What the optimizer state has taken stays.)
    pub(super) fn pass<R>(
        &mut self,
        reports: &mut Reports,
        order: &Order,
        task: &mut Task<'_, M, R>,
    ) -> Result<R, FusedError> {
        reports.last = StepReport::default();
        let goal = order.plan.goal;
        let group = self.group.as_deref();

        // Begin.
        let running = self.all.iter().zip(task.closures).map(|(rank, closure)| {
            let form = &rank.form;
            let transfers = form.layout.transfers.get();
            let transfers = transfers.filter(|_| order.checkpointing.offload_inputs);
            let session = &rank.session;
            session.begin(order, *closure, form.foresight(), transfers.cloned())
        });
        let running: Vec<_> = running.collect();
        let mut ending = Ending {
            ranks: &mut self.all,
            is_recorded: running[0].pass.is_recorded,
        };
        if ending.is_recorded {
            let homes = ending.ranks[0].form.views.homes();
            homes.for_each(|home| home.show());
            memory::enter(memory::Phase::Forward);
        }

        // Forward and backward, and what the backward pass has left.
        let ranks = ending.ranks.iter().zip(&running).map(|(rank, running)| {
            let part = RankPass {
                pass: running.pass.clone(),
                views: rank.form.views.clone(),
                layout: rank.form.layout.clone(),
                read_late: self.read_late,
            };
            (part, &rank.form.module)
        });
        let (output, gradients) = (task.compute)(ranks.collect())?;
        check(&running, group)?;
        if !ending.ranks[0].form.views.leaves.is_empty() {
            ending.deliver(goal, &running, gradients);
            check(&running, group)?;
        }

        // Commit; whoever has left before has rolled back.
        let ended = ending.well();
        for (rank, running) in self.all.iter_mut().zip(&running) {
            rank.form.learn_course(&running.pass.blocks.course.lock());
        }
        let census = running[0].pass.census.clone();
        drop(running);
        let form = &self.all[0].form;
        reports.tell(form, ended, census.map(|census| census.take()));

        // What others have sent a rank since it was through, and what the devices say of the update.
        if self.remote {
            self.check_connected()?;
        }
        if goal.steps() && self.read_late {
            self.check_written()?;
        }
        Ok(output)
    }

    /// Refuses devices that are lost.
    pub(super) fn check_connected(&self) -> Result<(), FusedError> {
        check_connected(|| self.devices.clone())
    }

    /// Refuses values that their device has not computed.
    fn check_written(&self) -> Result<(), FusedError> {
        let mut written = Written::new();
        let views = self.all.iter().flat_map(|rank| rank.form.views.iter());
        views.for_each(|view| view.ask_written(&mut written));
        written.answer()
    }
}

/// Goes on with what has ended a pass, if something has: of several ranks with what was the first.
fn check(running: &[Running], group: Option<&Group>) -> Result<(), FusedError> {
    let failures = running.iter().enumerate().filter_map(|(rank, running)| {
        let failure = running.pass.take_failure()?;
        Some((rank, running.pass.rehearsal.is_some(), failure))
    });
    let first = group.and_then(|group| group.flow.failed());
    let first = failures.min_by_key(|(rank, ..)| (Some(*rank) != first, *rank));
    match (first, group) {
        (None, _) => Ok(()),
        (Some((.., failure)), None) => failure.go_on(),
        (Some((rank, repeated, failure)), Some(group)) => {
            Err(failure.on_rank(rank, group.device(rank), repeated))
        }
    }
}

/// A pass under way. When dropped, it ends in every view and home as one that has not ended well.
struct Ending<'a, M: Module> {
    ranks: &'a mut [Rank<M>],
    is_recorded: bool,
}

impl<M: Module> Ending<'_, M> {
    /// Uses the gradients of the parameters that are ordinary leaves, of every rank in its pass.
    fn deliver(&mut self, goal: Goal, running: &[Running], gradients: Vec<GradientsParams>) {
        if goal.steps() {
            let ranks = self.ranks.iter_mut();
            ranks.for_each(|rank| rank.form.let_go_of_leaves());
        }
        for ((rank, running), gradients) in self.ranks.iter().zip(running).zip(gradients) {
            let pass = &running.pass;
            pass.guarded_in_queue(|| rank.form.views.deliver(pass, gradients));
            if let Some(transfers) = rank.form.layout.transfers.get() {
                transfers.wait();
            }
        }
    }

    /// Ends well. Returns what has happened to each parameter, on all ranks together.
    fn well(mut self) -> HashMap<ParamId, ParameterReport> {
        let ended = self.end(true);
        // Nothing is left to be rolled back.
        std::mem::forget(self);
        ended
    }

    /// The leaves of the modules have the values that their homes have then.
    fn end(&mut self, well: bool) -> HashMap<ParamId, ParameterReport> {
        let mut reports = HashMap::<ParamId, ParameterReport>::new();
        for (id, report) in self.ranks.iter().flat_map(|rank| rank.form.views.end(well)) {
            let others = reports.entry(id);
            let others = others.and_modify(|others| others.add(&report));
            others.or_insert(report);
        }
        for rank in self.ranks.iter_mut() {
            if !rank.form.views.leaves.is_empty() {
                rank.form.renew_leaves();
            }
        }
        if self.is_recorded {
            memory::enter(memory::Phase::Other);
        }
        reports
    }
}

impl<M: Module> Drop for Ending<'_, M> {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// What is told of passes.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// What the last one did.
    pub(super) last: StepReport,
    /// Whether a parameter got a gradient in it.
    pub(super) reached: bool,
    /// The parameters that the log has named for having got no gradient.
    told: HashSet<ParamId>,
}

impl Reports {
    /// Tells of a pass in which this has happened to the parameters.
    pub(super) fn tell<M: Module>(
        &mut self,
        form: &FusedForm<M>,
        ended: HashMap<ParamId, ParameterReport>,
        gradients_alive: Option<usize>,
    ) {
        let mut report = StepReport {
            copied: Some(0),
            gradients_alive,
            without_gradient: ended.len(),
            ..StepReport::default()
        };
        let all = ended.len();
        for (id, of) in ended {
            report.updated += usize::from(of.updated);
            report.vetoed += usize::from(of.vetoed);
            report.without_gradient -= usize::from(of.received);
            if of.updated {
                let copied = report.copied.zip(of.copied);
                report.copied = copied.map(|(copied, this)| copied + usize::from(this));
            }
            if !of.received && self.told.insert(id) {
                let path = form.path(id);
                log::warn!("parameter `{path}` got no gradient in this pass");
            }
        }
        self.reached = report.without_gradient < all;
        self.last = report;
    }
}
