//! Steps and micro-batches, each of one pass, or of two or three where all gradients must be known first.

use backburn_base::caught::{Caught, catch};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;

use super::Core;
use super::rank_pass::RankPass;
use super::running_pass::{PassClosure, RunningPass};
use crate::error::FusedError;
use crate::fused::StepReport;
use crate::fused::policies::StepSchedule;
use crate::pass::{ClosureKind, Failure, PassSettings, StepNumbers};
use crate::policy::{GradientPipeline, GradientUse, Norm};

impl<M: Module> Core<M> {
    /// Runs a step of closures of this kind. Without a learning rate, accumulates the gradients of a micro-batch. In a plain step
    /// the schedule is `OnePass`.
    pub(in crate::fused) fn step<R>(
        &mut self,
        learning_rate: Option<ModuleLearningRate>,
        kind: ClosureKind,
        run: &mut PassClosure<'_, M, R>,
    ) -> Result<R, FusedError> {
        let Some(learning_rate) = learning_rate else {
            let ended = self.accumulate(kind, run);
            return self.resume_end_panic(ended);
        };
        let schedule = self.policies.schedule;
        let computes = kind != ClosureKind::Nothing;
        if schedule == StepSchedule::Buffered && computes {
            let ended = self.accumulate(kind, run);
            if ended.is_ok() && self.has_accumulated() {
                self.step_accumulated(learning_rate)?;
            }
            return self.resume_end_panic(ended);
        }
        self.ranks.optimizer.lock().learning_rate = learning_rate;
        let ended = catch(|| match schedule {
            StepSchedule::OnePass => {
                let pipeline = self.policies.pipeline(GradientUse::Update, None);
                self.pass(pipeline, None, kind, run)
            }
            StepSchedule::Adaptive => self.adaptive_pass(GradientUse::Update, kind, run),
            StepSchedule::TwoPass if computes => self.two_passes(kind, run),
            StepSchedule::TwoPass | StepSchedule::Buffered => self.apply_buffered(run),
        });
        let failure = match (ended, self.end_panic.get_mut().take()) {
            (Ok(Ok(output)), None) => return Ok(output),
            (Ok(Ok(_)), Some(panic)) => panic.resume(),
            (Ok(Err(error)), _) => Failure::Error(error),
            (Err(panic), _) => self.panicked(panic),
        };
        self.drop_unusable_sums();
        failure.into_result()
    }

    /// Drops the accumulated gradients that no later step can apply, after a step that has failed.
    fn drop_unusable_sums(&mut self) {
        if !self.policies.tolerates_overflow() {
            self.drop_accumulated_if_not_finite();
        }
        if self.policies.schedule == StepSchedule::Buffered {
            // Some gradients may have been applied.
            self.drop_accumulated();
        }
    }

    /// Steps with the accumulated gradients alone.
    pub(in crate::fused) fn step_accumulated(
        &mut self,
        learning_rate: ModuleLearningRate,
    ) -> Result<(), FusedError> {
        if !self.has_accumulated() {
            return self.refuse(FusedError::NothingAccumulated);
        }
        self.step(Some(learning_rate), ClosureKind::Nothing, &mut |running| {
            if let Some(group) = running.group {
                group.begin(&vec![false; running.rank_passes.len()]);
            }
            running
                .rank_passes
                .iter()
                .for_each(RankPass::apply_accumulated);
            Ok(())
        })
    }

    /// Runs the forward and backward pass and changes nothing.
    pub(in crate::fused) fn dry_run<R>(
        &mut self,
        run: impl FnOnce(&RunningPass<M>) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        let pipeline = self.policies.pipeline(GradientUse::Measure, None);
        let ended = self.pass(pipeline, None, ClosureKind::Loss, run);
        self.resume_end_panic(ended)
    }

    /// Resumes the panic of an observer at the end of a pass. To resume it earlier would skip the rest of the step.
    fn resume_end_panic<R>(&mut self, ended: Result<R, FusedError>) -> Result<R, FusedError> {
        match (ended, self.end_panic.get_mut().take()) {
            (Ok(_), Some(panic)) => panic.resume(),
            (ended, _) => ended,
        }
    }

    /// Returns `error` for a step that has not begun, and resets the report.
    pub(in crate::fused) fn refuse<R>(&mut self, error: FusedError) -> Result<R, FusedError> {
        self.reports.last = StepReport::default();
        Err(error)
    }

    /// Accumulates the gradients of one pass. If it fails after a sum was overwritten, all accumulated gradients are
    /// dropped.
    fn accumulate<R>(
        &mut self,
        kind: ClosureKind,
        run: &mut PassClosure<'_, M, R>,
    ) -> Result<R, FusedError> {
        let gradient_use = match self.policies.in_state {
            true => GradientUse::AccumulateInState,
            false => GradientUse::Accumulate,
        };
        let schedule = self.policies.schedule;
        let ended = catch(|| match gradient_use {
            GradientUse::AccumulateInState if schedule != StepSchedule::OnePass => {
                self.adaptive_pass(gradient_use, kind, run)
            }
            _ => {
                let pipeline = self.policies.pipeline(gradient_use, None);
                self.pass(pipeline, None, kind, run)
            }
        });
        let ended = match ended {
            Ok(ended) => ended.map_err(Failure::Error),
            Err(panic) => Err(self.panicked(panic)),
        };
        let lost = self.ranks.local_params().lost_accumulated();
        let lost = lost.map(str::to_string);
        let Some(path) = lost else {
            return ended.or_else(Failure::into_result);
        };
        self.drop_accumulated();
        let reason = ended.map_or_else(|failure| failure.message(), |_| String::new());
        Err(FusedError::AccumulatedLost { path, reason })
    }

    /// Returns the failure of a pass that has panicked. A lost device is an error: the first read from the device
    /// reports it.
    fn panicked(&self, panic: Caught) -> Failure {
        match self.check_connected() {
            Ok(()) => Failure::Panic(panic),
            Err(lost) => Failure::Error(lost),
        }
    }

    /// Runs a pass that policies adapt to.
    fn adaptive_pass<R>(
        &mut self,
        gradient_use: GradientUse,
        kind: ClosureKind,
        run: &mut PassClosure<'_, M, R>,
    ) -> Result<R, FusedError> {
        let clip = self.policies.lagged_coefficient();
        let pipeline = self.policies.pipeline(gradient_use, clip);
        let output = self.pass(pipeline.clone(), None, kind, run)?;
        let norm = pipeline.norm()?;
        if let Some(Norm {
            value,
            not_finite: Some(path),
            ..
        }) = &norm
            && !self.policies.tolerates_overflow()
        {
            let (norm, path) = (*value, path.clone());
            return Err(FusedError::UpdatedNotFinite { norm, path });
        }
        let norm = norm.and_then(|norm| norm.measured());
        self.adapt(&pipeline, clip, norm, pipeline.overflowed());
        Ok(output)
    }

    /// Runs a pass: begin, forward and backward by `run`, finish, commit. `numbers` are the random numbers of a step of two
    /// passes; other passes begin their own. If it fails or only measures, the running statistics are restored.
    pub(super) fn pass<R>(
        &mut self,
        pipeline: GradientPipeline,
        numbers: Option<StepNumbers>,
        kind: ClosureKind,
        run: impl FnOnce(&RunningPass<M>) -> Result<R, FusedError>,
    ) -> Result<R, FusedError> {
        self.reports.last = StepReport::default();
        let (gradient_use, ranks) = (pipeline.gradient_use, &self.ranks);
        let session = &ranks.attached_modules[0].session;
        let numbers = match (numbers, kind) {
            (Some(numbers), _) => numbers,
            (None, ClosureKind::Nothing) => StepNumbers::default(),
            (None, _) => StepNumbers::begin(session, &ranks.devices, false)?,
        };
        // The step counts as one without the lock until this function ends.
        let _unlocked = numbers.unlocked.clone();
        let settings = PassSettings {
            pipeline,
            numbers,
            observers: self.policies.observers.clone(),
            checkpointing: self.policies.config.gradient_checkpointing.clone(),
            closure_kind: kind,
        };
        // Without a closure no layer runs, and the last updates stay pending.
        let statistics = match self.ranks.statistics.is_empty() || kind == ClosureKind::Nothing {
            true => Vec::new(),
            false => self.ranks.guard_statistics(),
        };
        let mut running_pass = RunningPass::begin(&mut self.ranks, settings);
        let result = catch(|| {
            if let Some(observers) = &running_pass.rank_passes[0].pass.observers {
                running_pass.emit_begin(observers);
            }
            let output = run(&running_pass)?;
            if !running_pass.rank_passes[0].local_params.retained.is_empty() {
                running_pass.apply_retained(gradient_use);
            }
            Ok(output)
        });
        let end_panic = self.end_panic.get_mut();
        let output = running_pass.end(result, &mut self.reports, end_panic);
        let output = output.or_else(Failure::into_result)?;

        // Other ranks may have sent gradients to a rank after its part, and remote devices report failures late.
        if self.ranks.remote {
            self.check_connected()?;
        }
        if self.ranks.is_asynchronous && gradient_use.steps() {
            self.ranks.check_async_errors()?;
        }
        if gradient_use == GradientUse::Measure {
            return Ok(output);
        }
        if !statistics.is_empty() {
            self.ranks.commit_statistics(statistics)?;
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
