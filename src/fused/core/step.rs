//! Steps and micro-batches, each of one pass or two.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;

use super::Core;
use super::rank_pass::{Computed, Parts, Task, all_stand_by};
use crate::caught::catch;
use crate::error::FusedError;
use crate::fused::policies::Passes;
use crate::memory;
use crate::parameters::ModelKey;
use crate::pass::{Closure, Failure, Order};
use crate::policy::{Goal, Norm, Plan};
use crate::random::Stream;
use crate::report::StepReport;

impl<M: Module> Core<M> {
    /// A step, or without a learning rate the gradients of a micro-batch.
    pub(in crate::fused) fn step<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        mut task: Task<'_, M, R>,
    ) -> Result<R, FusedError> {
        let Some(learning_rate) = learning_rate else {
            return self.add(&mut task);
        };
        if self.policies.passes() != Passes::Waiting {
            return self.update(learning_rate, &mut task);
        }
        let output = self.add(&mut task)?;
        if self.has_accumulated() {
            self.step_accumulated(learning_rate)?;
        }
        Ok(output)
    }

    /// A step with the gradients of a pass, and those that were accumulated.
    fn update<R>(
        &mut self,
        learning_rate: ModuleLearningRate,
        task: &mut Task<'_, M, R>,
    ) -> Result<R, FusedError> {
        self.ranks.session().update.lock().learning_rate = learning_rate;
        let ended = self.attempt(|core| match core.policies.passes() {
            Passes::One | Passes::Learning => core.one_pass(Goal::Update, task),
            Passes::Two | Passes::Waiting if task.computes() => core.two_passes(task),
            Passes::Two | Passes::Waiting => core.use_waiting(task),
        });
        ended.or_else(|failure| {
            if !self.policies.bear_overflow() {
                self.drop_accumulated_if_not_finite();
            }
            if self.policies.passes() == Passes::Waiting {
                // Some have been used.
                self.drop_accumulated();
            }
            failure.go_on()
        })
    }

    /// Steps with the accumulated gradients alone.
    pub(in crate::fused) fn step_accumulated(
        &mut self,
        learning_rate: ModuleLearningRate,
    ) -> Result<(), FusedError> {
        if !self.has_accumulated() {
            return self.refuse(FusedError::NothingAccumulated);
        }
        let closures = vec![Closure::Nothing; self.ranks.forms.len()];
        let mut task = Task {
            closures: &closures,
            compute: &mut all_stand_by,
        };
        self.update(learning_rate, &mut task)
    }

    /// Forward and backward that change nothing.
    pub(in crate::fused) fn dry_run<R>(
        &mut self,
        compute: &mut dyn FnMut(Parts<'_, M>) -> Computed<R>,
    ) -> Result<R, FusedError> {
        memory::enter_dry_run(|| ModelKey::of(&self.ranks.form().module));
        let mut task = Task {
            closures: &[Closure::Loss],
            compute,
        };
        let plan = self.policies.plan(Goal::Measure, None);
        let output = self.pass(plan, None, &mut task)?;
        self.check_reached()?;
        Ok(output)
    }

    /// Refuses a closure that runs once where the policies need two passes.
    pub(in crate::fused) fn check_runs_once(&mut self) -> Result<(), FusedError> {
        match self.policies.passes() {
            Passes::Two => self.refuse(FusedError::RunsTwice),
            Passes::One | Passes::Learning | Passes::Waiting => Ok(()),
        }
    }

    /// The error of a step that has not begun.
    pub(in crate::fused) fn refuse<R>(&mut self, error: FusedError) -> Result<R, FusedError> {
        self.reports.last = StepReport::default();
        Err(error)
    }

    /// Refuses a pass whose loss has reached no parameter, and that had nothing else to use.
    pub(in crate::fused) fn check_reached(&self) -> Result<(), FusedError> {
        let parameters = self.reports.parameters;
        match self.reports.last.without_gradient < parameters {
            true => Ok(()),
            false => Err(FusedError::LossWithoutParameters { parameters }),
        }
    }

    /// Adds up the gradients of one pass. If it fails after it has overwritten a sum, all that was accumulated is dropped.
    fn add<R>(&mut self, task: &mut Task<'_, M, R>) -> Result<R, FusedError> {
        let ended = self.attempt(|core| {
            if core.policies.in_state {
                return core.one_pass(Goal::Begin, task);
            }
            let plan = core.policies.plan(Goal::Accumulate, None);
            core.pass(plan, None, task)
        });
        let lost = self.ranks.views().lost_accumulated().map(str::to_string);
        let Some(path) = lost else {
            return ended.or_else(Failure::go_on);
        };
        self.drop_accumulated();
        let reason = ended.map_or_else(|failure| failure.message(), |_| String::new());
        Err(FusedError::AccumulatedLost { path, reason })
    }

    /// Does `work`, whose panic is caught. It is an error if a device is lost: who reads from it first is the first to notice.
    fn attempt<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, FusedError>,
    ) -> Result<R, Failure> {
        match catch(|| work(self)) {
            Ok(ended) => ended.map_err(Failure::Error),
            Err(panic) => Err(match self.ranks.check_connected() {
                Ok(()) => Failure::Panic(panic),
                Err(lost) => Failure::Error(lost),
            }),
        }
    }

    /// An update in one pass, or the begin of one.
    fn one_pass<R>(&mut self, goal: Goal, task: &mut Task<'_, M, R>) -> Result<R, FusedError> {
        if self.policies.passes() == Passes::One {
            return self.pass(self.policies.plan(goal, None), None, task);
        }
        let clip = self.policies.lagged_coefficient();
        let plan = self.policies.plan(goal, clip);
        let output = self.pass(plan.clone(), None, task)?;
        let norm = plan.norm()?;
        if let Some(Norm {
            value,
            not_finite: Some(path),
            ..
        }) = &norm
            && !self.policies.bear_overflow()
        {
            let (norm, path) = (*value, path.clone());
            return Err(FusedError::UpdatedNotFinite { norm, path });
        }
        let norm = norm.map(|norm| norm.value);
        self.adapt(&plan, clip, norm, plan.overflowed());
        Ok(output)
    }

    /// Runs a pass. If it fails or only measures, the running statistics are restored.
    pub(super) fn pass<R>(
        &mut self,
        plan: Plan,
        twice: Option<Stream>,
        task: &mut Task<'_, M, R>,
    ) -> Result<R, FusedError> {
        let goal = plan.goal;
        let order = Order {
            plan,
            twice,
            checkpointing: Arc::new(self.policies.config.gradient_checkpointing.clone()),
        };
        let statistics = match self.ranks.statistics.is_empty() {
            true => Vec::new(),
            false => self.ranks.guard_statistics(),
        };
        let output = self.ranks.pass(&mut self.reports, &order, task)?;
        if goal == Goal::Measure {
            return Ok(output);
        }
        if !statistics.is_empty() {
            self.ranks.average_statistics(&statistics)?;
        }
        if task.closures.contains(&Closure::Loss) {
            self.check_reached()?;
        }
        for guard in statistics {
            guard.commit();
        }
        Ok(output)
    }

    /// Reports what the policies did, and lets them learn from it.
    pub(super) fn adapt(
        &mut self,
        plan: &Plan,
        clip: Option<f64>,
        norm: Option<f64>,
        overflowed: bool,
    ) {
        let policies = &self.policies;
        let report = &mut self.reports.last;
        report.gradient_norm = norm;
        report.clipping = policies.config.clipping.map(|_| clip.unwrap_or(1.0));
        report.loss_scale = plan.scale;
        report.overflowed = overflowed;
        policies.adapt(norm, overflowed);
    }
}
