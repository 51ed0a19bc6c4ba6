//! A step in two passes, for policies that need all gradients before the first is applied.

use burn::module::Module;

use super::Core;
use super::rank_pass::Executor;
use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::policy::{GradientPipeline, GradientUse, Norm};

impl<M: Module> Core<M> {
    /// Runs a pass that measures all gradients, then a pass that applies them.
    pub(super) fn two_passes<R>(&mut self, executor: &mut Executor<M, R>) -> Result<R, FusedError> {
        let observations = self.ranks.session().observations.clone();
        let reads = !self.ranks.devices.iter().any(is_cubecl);
        let numbers = self.begin_numbers(true)?;
        let pipeline = self.policies.pipeline(GradientUse::Measure, None);
        let output = self.pass(pipeline.clone(), Some(numbers.clone()), executor)?;
        let Some((norm, coefficient)) = self.norm_to_use(&pipeline)? else {
            return Ok(output);
        };
        let value = norm.value;
        let mut pipeline = self.policies.pipeline(GradientUse::Update, coefficient);
        if reads && (observations.may_draw() || !numbers.are_locked()) {
            pipeline = pipeline.comparing(norm);
        }
        let output = self.pass(pipeline.clone(), Some(numbers), executor);
        if let Err(FusedError::RandomNumbers { .. }) = output {
            // A model that has drawn without the lock waits for the lock in later steps.
            observations.has_drawn();
        }
        let output = output?;
        self.adapt(&pipeline, coefficient, Some(value), false);
        Ok(output)
    }

    /// Measures the buffered gradients, then applies them. Nothing is computed twice, and no random numbers are drawn.
    pub(super) fn apply_buffered<R>(
        &mut self,
        executor: &mut Executor<M, R>,
    ) -> Result<R, FusedError> {
        let pipeline = self.policies.pipeline(GradientUse::Measure, None);
        let output = self.pass(pipeline.clone(), None, executor)?;
        let Some((norm, coefficient)) = self.norm_to_use(&pipeline)? else {
            return Ok(output);
        };
        let pipeline = self.policies.pipeline(GradientUse::Update, coefficient);
        let output = self.pass(pipeline.clone(), None, executor)?;
        self.adapt(&pipeline, coefficient, Some(norm.value), false);
        Ok(output)
    }

    /// Returns the norm that a pass has measured, and the clipping factor. `None` if the step is skipped after an
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
            return Ok(None);
        }
        let coefficient = self.policies.coefficient(norm.value);
        Ok(Some((norm, coefficient)))
    }
}
