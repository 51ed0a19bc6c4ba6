//! One pass on all ranks.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;

use super::dispatch::{Ended, Work, check, set_to_work};
use super::rank::{Rank, statistics_of};
use super::task::Task;
use crate::device::{caught, check_connected, hand_over};
use crate::error::FusedError;
use crate::fused::run::{Ending, Order};
use crate::fused::{FusedOptimizer, work};
use crate::pass::{Closure, Reads, Running, Scope};
use crate::policy::Goal;
use crate::random::Stream;
use crate::replica::{Group, Membership, Turn};
use crate::report::StepReport;
use crate::weights::{FusedForm, KeptStatistics, RunningStatistics};
use crate::worker::Worker;

/// All ranks but the first, and the threads of all.
pub(super) struct Crew<M> {
    others: Vec<Rank<M>>,
    group: Arc<Group>,
    statistics: RunningStatistics,
    /// One a rank. They stay: CubeCL keeps a stream for each.
    threads: Vec<Worker>,
}

impl<M: Module + 'static> Crew<M> {
    pub(super) fn new(others: Vec<Rank<M>>, group: Arc<Group>) -> Result<Self, FusedError> {
        let statistics = statistics_of(&others);
        let thread = |rank| {
            Worker::new(&format!("rank {rank}")).map_err(|error| FusedError::Replicas {
                reason: format!("no thread could be started for rank {rank}: {error}"),
            })
        };
        Ok(Self {
            others,
            statistics,
            threads: (0..group.ranks()).map(thread).collect::<Result<_, _>>()?,
            group,
        })
    }

    /// Puts in the replicas of a changed model.
    pub(super) fn replace(&mut self, others: Vec<Rank<M>>, group: Arc<Group>) {
        self.statistics = statistics_of(&others);
        (self.others, self.group) = (others, group);
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// A pass on all ranks that have a batch. Returns what they gave, in their order.
    ///
    /// It ends well on all ranks or on none, as [`FusedOptimizer::run`] does on one.
    pub(super) fn run<B: Send + 'static, R: Send + 'static>(
        &mut self,
        first: &mut FusedOptimizer<M>,
        closure: Closure,
        order: Order,
        batches: Vec<Option<B>>,
        work: &Work<M, B, R>,
    ) -> Result<Vec<R>, FusedError> {
        let repeats = order.rehearsal.is_some();
        let goal = order.plan.goal;
        // Those of the first rank are seen to where both passes are.
        let statistics: Vec<_> = match repeats {
            true => self
                .others
                .iter()
                .map(|rank| KeptStatistics::of(&rank.form.module))
                .collect(),
            false => Vec::new(),
        };
        let takes_part: Vec<bool> = batches.iter().map(Option::is_some).collect();
        let forms = self.forms(first).zip(&takes_part);
        let before: Vec<_> = forms
            .map(|(form, takes_part)| takes_part.then(|| self.statistics.look(&form.module)))
            .collect();
        let ended = self.run_once(first, closure, order, &takes_part, batches, work);
        match (&ended, goal) {
            (_, Goal::Measure) | (Err(FusedError::RandomNumbers { .. }), _) => drop(statistics),
            _ => {
                let left = |statistics: KeptStatistics<M>| statistics.forget(Reads::InTime);
                statistics.into_iter().for_each(left);
                if takes_part.contains(&true) && takes_part.len() > 1 {
                    let modules = self.forms(first).map(|form| &form.module);
                    let modules: Vec<_> = modules.zip(before).collect();
                    let averaged = caught(|| self.statistics.average(&modules));
                    // A device that is lost has ended the pass already.
                    if let (Ok(_), Err(reason)) = (&ended, averaged) {
                        return Err(FusedError::Replicas {
                            reason: format!(
                                "the running statistics of all ranks could not be averaged: {reason}"
                            ),
                        });
                    }
                }
            }
        }
        ended
    }

    fn run_once<B: Send + 'static, R: Send + 'static>(
        &mut self,
        first: &mut FusedOptimizer<M>,
        closure: Closure,
        order: Order,
        takes_part: &[bool],
        batches: Vec<Option<B>>,
        work: &Work<M, B, R>,
    ) -> Result<Vec<R>, FusedError> {
        first.report = StepReport::default();
        self.check_place()?;
        let plan = order.plan.clone();
        self.group.begin(takes_part);
        let repeats = order.rehearsal.is_some();
        let numbers = self.numbers(first, &order, closure)?;
        let running: Vec<Running> = {
            let others = self.others.iter().map(|rank| (&rank.session, &rank.form));
            let ranks = [(&first.session, &first.form)].into_iter().chain(others);
            let begin = |((session, form), takes_part): ((_, &FusedForm<M>), &bool)| {
                let closure = match takes_part {
                    true => closure,
                    false => Closure::Nothing,
                };
                let choice = first.config.gradient_checkpointing.choice();
                work::begin(session, form, closure, order.clone(), choice)
            };
            ranks.zip(takes_part).map(begin).collect()
        };
        let others = self.others.iter_mut().map(|rank| &mut rank.form);
        let mut ending = Ending::of([&mut first.form].into_iter().chain(others));
        // The batches come from this thread.
        self.group.devices().iter().for_each(hand_over);

        let tasks = running.iter().enumerate().map(|(rank, running)| {
            let form = ending.form(rank);
            let task = Task {
                rank,
                pass: running.pass.clone(),
                views: form.views().clone(),
                layout: form.layout().clone(),
                group: self.group.clone(),
            };
            (task, form.module.clone())
        });
        let tasks = tasks.zip(batches).collect();
        let Ended { outputs, failed } =
            set_to_work(&self.threads, &self.group, tasks, numbers.as_ref(), work);
        if let Some(numbers) = numbers {
            // What is drawn next does not depend on how many numbers the ranks have drawn.
            let _turn = turn(&self.group)?;
            numbers.end();
        }
        check(&self.group, failed, &running, repeats)?;

        let mut gradients: Vec<_> = (0..running.len()).map(|_| GradientsParams::new()).collect();
        let mut given = Vec::new();
        for (rank, (output, of_rank)) in outputs {
            gradients[rank] = of_rank;
            given.push(output);
        }
        let passes = running.iter().map(|running| &running.pass);
        ending.deliver(plan.goal, passes.zip(gradients));
        check(&self.group, Vec::new(), &running, repeats)?;
        let ended = ending.well();
        let others = self.others.iter_mut().map(|rank| &mut rank.form);
        let forms = [&mut first.form].into_iter().chain(others);
        for (form, running) in forms.zip(&running) {
            form.learn_course(running.pass.course());
        }
        drop(running);
        first.report_on(ended);
        // What others have sent a rank since it was through.
        check_connected(|| self.group.devices().to_vec())?;
        if plan.goal == Goal::Update {
            work::check_written(self.forms(first))?;
        }
        Ok(given)
    }

    pub(super) fn forms<'a>(
        &'a self,
        first: &'a FusedOptimizer<M>,
    ) -> impl Iterator<Item = &'a FusedForm<M>> {
        [&first.form]
            .into_iter()
            .chain(self.others.iter().map(|rank| &rank.form))
    }

    /// Refuses a pass in the closure of another, which has the turn to draw random numbers.
    fn check_place(&self) -> Result<(), FusedError> {
        let outer = Scope::current().and_then(|scope| scope.pass.membership.clone());
        let waits = |outer: &Membership| outer.group.takes_turns() && self.group.takes_turns();
        match outer.as_ref().is_some_and(waits) {
            false => Ok(()),
            true => Err(FusedError::Replicas {
                reason: "a step of replicas was called in the closure of another's, and each waits for the other to draw \
                         random numbers: call it outside, or set `FusedConfig::draws_random_numbers` to false in one of them"
                    .to_string(),
            }),
        }
    }

    /// The random numbers that those of all ranks in this pass come from, if they take turns.
    fn numbers(
        &self,
        first: &FusedOptimizer<M>,
        order: &Order,
        closure: Closure,
    ) -> Result<Option<Stream>, FusedError> {
        if !self.group.takes_turns() || closure == Closure::Nothing {
            return Ok(None);
        }
        let _turn = turn(&self.group)?;
        let devices = self.group.devices().to_vec();
        let numbers = || {
            Stream::new(devices, |device| match &order.rehearsal {
                Some(rehearsal) => rehearsal.seed(),
                None => first.session.next_seed(device),
            })
        };
        let numbers = caught(numbers).map_err(|reason| FusedError::DeviceLost {
            device: format!("{:?}", self.group.device(0)),
            reason,
        });
        numbers.map(Some)
    }
}

/// Waits for the turn to draw random numbers for all ranks.
fn turn(group: &Arc<Group>) -> Result<Turn, FusedError> {
    Turn::take(group, group, group.device(0))
}
