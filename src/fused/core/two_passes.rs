//! A step in two passes, for policies that need all gradients before the first is applied.

use std::sync::Arc;

use burn::module::Module;

use super::Core;
use super::running_pass::PassClosure;
use crate::error::FusedError;
use crate::pass::{ClosureKind, StepNumbers};
use crate::policy::{GradientPipeline, GradientUse, Losses, Norm};

impl<M: Module> Core<M> {
    /// Runs a pass that measures all gradients, then a pass that applies them.
    pub(super) fn two_passes<R>(
        &mut self,
        kind: ClosureKind,
        run: &mut PassClosure<'_, M, R>,
    ) -> Result<R, FusedError> {
        let ranks = &self.ranks;
        let reads = !ranks.is_asynchronous;
        let losses = reads.then(Arc::<Losses>::default);
        let session = &ranks.attached().session;
        let numbers = StepNumbers::begin(session, &ranks.devices, true)?;
        let mut pipeline = self.policies.pipeline(GradientUse::Measure, None);
        pipeline.losses.clone_from(&losses);
        let output = self.pass(pipeline.clone(), Some(numbers.clone()), kind, &mut *run)?;
        let Some((norm, coefficient)) = self.norm_to_use(&pipeline)? else {
            return Ok(output);
        };
        // The output may hold the logits.
        drop(output);
        let measured = norm.measured();
        let mut pipeline = self.policies.pipeline(GradientUse::Update, coefficient);
        pipeline.losses = losses;
        if reads {
            pipeline.compare(norm);
        }
        let output = self.pass(pipeline.clone(), Some(numbers), kind, run);
        let output = output.and_then(|output| pipeline.finish_comparison().map(|()| output));
        if let Err(FusedError::RandomNumbers { .. }) = output {
            // A model that has drawn without the lock waits for the lock in later steps.
            self.ranks.attached().session.observations.record_draws();
        }
        let output = output?;
        self.adapt(&pipeline, coefficient, measured, false);
        Ok(output)
    }

    /// Measures the buffered gradients, then applies them. Nothing is computed twice, and no random numbers are drawn.
    pub(super) fn apply_buffered<R>(
        &mut self,
        run: &mut PassClosure<'_, M, R>,
    ) -> Result<R, FusedError> {
        let pipeline = self.policies.pipeline(GradientUse::Measure, None);
        let output = self.pass(pipeline.clone(), None, ClosureKind::Nothing, &mut *run)?;
        let Some((norm, coefficient)) = self.norm_to_use(&pipeline)? else {
            return Ok(output);
        };
        let pipeline = self.policies.pipeline(GradientUse::Update, coefficient);
        let output = self.pass(pipeline.clone(), None, ClosureKind::Nothing, run)?;
        self.adapt(&pipeline, coefficient, norm.measured(), false);
        Ok(output)
    }

    /// Returns the norm that a pass has measured, and the clipping coefficient. `None` if the step is skipped after an
    /// overflow.
    fn norm_to_use(
        &mut self,
        pipeline: &GradientPipeline,
    ) -> Result<Option<(Norm, Option<f64>)>, FusedError> {
        let norm = pipeline.norm()?.expect("the pass measures");
        if let Some(path) = norm.not_finite {
            if !self.policies.can_back_off() {
                let norm = norm.value;
                return Err(FusedError::NormNotFinite { norm, path });
            }
            self.drop_accumulated();
            self.adapt(pipeline, None, Some(norm.value), true);
            self.reports.last.clipping = None;
            return Ok(None);
        }
        let coefficient = self.policies.coefficient(norm.value);
        Ok(Some((norm, coefficient)))
    }
}
