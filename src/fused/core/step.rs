//! Steps and micro-batches, each of one pass or two.

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;

use super::Core;
use super::executor::{RankExecutor, WithoutClosures};
use crate::caught::catch;
use crate::error::FusedError;
use crate::fused::policies::StepSchedule;
use crate::memory;
use crate::parameters::ModelKey;
use crate::pass::{Closure, Failure, Order};
use crate::policy::{GradientPipeline, GradientUse, Norm};
use crate::random::Stream;
use crate::report::StepReport;

impl<M: Module> Core<M> {
    /// Runs a step, or without a learning rate accumulates the gradients of a micro-batch.
    pub(in crate::fused) fn step<E: RankExecutor<M>>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        executor: &mut E,
    ) -> Result<E::Output, FusedError> {
        let schedule = self.policies.schedule();
        let Some(learning_rate) = learning_rate else {
            return self.accumulate(schedule, executor);
        };
        let mut closures = executor.closures().iter();
        let computes = closures.any(|closure| *closure != Closure::Nothing);
        if schedule == StepSchedule::Buffered && computes {
            let output = self.accumulate(schedule, executor)?;
            if self.has_accumulated() {
                self.step_accumulated(learning_rate)?;
            }
            return Ok(output);
        }
        self.ranks.attached_modules[0]
            .session
            .update
            .lock()
            .learning_rate = learning_rate;
        let ended = self.attempt(|core| match schedule {
            StepSchedule::OnePass => core.pass(
                core.policies.pipeline(GradientUse::Update, None),
                None,
                executor,
            ),
            StepSchedule::Adaptive => core.adaptive_pass(GradientUse::Update, executor),
            StepSchedule::TwoPass if computes => core.two_passes(executor),
            StepSchedule::TwoPass | StepSchedule::Buffered => core.apply_buffered(executor),
        });
        ended.or_else(|failure| {
            if !self.policies.bear_overflow() {
                self.drop_accumulated_if_not_finite();
            }
            if schedule == StepSchedule::Buffered {
                // Some gradients have been applied.
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
        let closures = vec![Closure::Nothing; self.ranks.attached_modules.len()];
        self.step(Some(learning_rate), &mut WithoutClosures(closures))
    }

    /// Runs forward and backward without any change.
    pub(in crate::fused) fn dry_run<E: RankExecutor<M>>(
        &mut self,
        executor: &mut E,
    ) -> Result<E::Output, FusedError> {
        memory::enter_dry_run(|| ModelKey::of(&self.ranks.attached().module));
        let pipeline = self.policies.pipeline(GradientUse::Measure, None);
        let output = self.pass(pipeline, None, executor)?;
        self.check_reached()?;
        Ok(output)
    }

    /// Returns `error` for a step that has not begun.
    pub(in crate::fused) fn refuse<R>(&mut self, error: FusedError) -> Result<R, FusedError> {
        self.reports.last = StepReport::default();
        Err(error)
    }

    /// Returns an error if the loss has reached no parameter and nothing else was applied.
    pub(in crate::fused) fn check_reached(&self) -> Result<(), FusedError> {
        let parameters = self.reports.parameters;
        match self.reports.last.without_gradient < parameters {
            true => Ok(()),
            false => Err(FusedError::LossWithoutParameters { parameters }),
        }
    }

    /// Accumulates the gradients of one pass. If it fails after a sum was overwritten, all accumulated gradients are
    /// dropped.
    fn accumulate<E: RankExecutor<M>>(
        &mut self,
        schedule: StepSchedule,
        executor: &mut E,
    ) -> Result<E::Output, FusedError> {
        let gradient_use = match self.policies.in_state {
            true => GradientUse::AccumulateInState,
            false => GradientUse::Accumulate,
        };
        let ended = self.attempt(|core| match gradient_use {
            GradientUse::AccumulateInState if schedule != StepSchedule::OnePass => {
                core.adaptive_pass(gradient_use, executor)
            }
            _ => core.pass(core.policies.pipeline(gradient_use, None), None, executor),
        });
        let lost = self
            .ranks
            .local_params()
            .lost_accumulated()
            .map(str::to_string);
        let Some(path) = lost else {
            return ended.or_else(Failure::go_on);
        };
        self.drop_accumulated();
        let reason = ended.map_or_else(|failure| failure.message(), |_| String::new());
        Err(FusedError::AccumulatedLost { path, reason })
    }

    /// Runs `work` and catches its panic. A lost device is an error: the first read from the device reports it.
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

    /// Runs a pass that policies adapt to.
    fn adaptive_pass<E: RankExecutor<M>>(
        &mut self,
        gradient_use: GradientUse,
        executor: &mut E,
    ) -> Result<E::Output, FusedError> {
        let clip = self.policies.lagged_coefficient();
        let pipeline = self.policies.pipeline(gradient_use, clip);
        let output = self.pass(pipeline.clone(), None, executor)?;
        let norm = pipeline.norm()?;
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
        self.adapt(&pipeline, clip, norm, pipeline.overflowed());
        Ok(output)
    }

    /// Runs a pass: begin, forward and backward, finish, commit. If it fails or only measures, the running statistics
    /// are restored.
    pub(super) fn pass<E: RankExecutor<M>>(
        &mut self,
        pipeline: GradientPipeline,
        twice: Option<Stream>,
        executor: &mut E,
    ) -> Result<E::Output, FusedError> {
        self.reports.last = StepReport::default();
        let gradient_use = pipeline.gradient_use;
        let order = Order {
            pipeline,
            twice,
            checkpointing: Arc::new(self.policies.config.gradient_checkpointing.clone()),
        };
        let closures = executor.closures().to_vec();
        let statistics = match self.ranks.statistics.is_empty() {
            true => Vec::new(),
            false => self.ranks.guard_statistics(),
        };
        let mut transaction = self.ranks.begin(&order, &closures);
        let (output, gradients) = executor.run(&transaction.ranks, transaction.attached_modules)?;
        transaction.check()?;
        if !transaction.attached_modules[0]
            .local_params
            .leaves
            .is_empty()
        {
            transaction.apply_after_backward(gradient_use, gradients)?;
        }
        let computed = closures.iter().any(|closure| *closure != Closure::Nothing);
        let reports = transaction.commit(computed);
        self.reports
            .report(&self.ranks.attached_modules[0], reports);

        // Other ranks may have sent gradients to a rank after its part, and remote devices report failures late.
        if self.ranks.remote {
            self.ranks.check_connected()?;
        }
        if self.ranks.read_late && gradient_use.steps() {
            self.ranks.check_async_errors()?;
        }
        if gradient_use == GradientUse::Measure {
            return Ok(output);
        }
        if !statistics.is_empty() {
            self.ranks.average_statistics(&statistics)?;
        }
        if closures.contains(&Closure::Loss) {
            self.check_reached()?;
        }
        for guard in statistics {
            guard.commit();
        }
        Ok(output)
    }

    /// Reports the effect of the policies, and adapts them.
    pub(super) fn adapt(
        &mut self,
        pipeline: &GradientPipeline,
        clip: Option<f64>,
        norm: Option<f64>,
        overflowed: bool,
    ) {
        let policies = &self.policies;
        let report = &mut self.reports.last;
        report.gradient_norm = norm;
        report.clipping = policies.config.clipping.map(|_| clip.unwrap_or(1.0));
        report.loss_scale = pipeline.scale;
        report.overflowed = overflowed;
        policies.adapt(norm, overflowed);
    }
}
