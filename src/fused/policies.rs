use burn::optim::ModuleOptimizer;

use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::optim::{AccumulateInState, Ruled};
use crate::policy::{
    Accumulation, AverageExtraState, GlobalNormClippingConfig, GradientPipeline, GradientUse,
    Hooks, LossScale, Overflow, PolicyState,
};

/// What is done with gradients: as the config says, and what no config holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) config: FusedConfig,
    pub(crate) hooks: Hooks,
    /// Whether gradients go into the optimizer state when they are accumulated.
    pub(crate) in_state: bool,
    /// From one step for the next.
    adaptive: PolicyState,
}

/// The passes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepSchedule {
    /// One pass, which applies gradients as they arrive. No policy depends on the gradients of whole steps.
    OnePass,
    /// One pass, whose gradients adapt the policies for the next step.
    Adaptive,
    /// Two passes: the first measures all gradients, the second applies them.
    TwoPass,
    /// One pass, whose gradients stay in the buffer until all are measured.
    Buffered,
}

impl Policies {
    /// The policies of a training whose `optimizer` accumulates in its state.
    pub(crate) fn in_state_of(
        optimizer: Ruled<impl AccumulateInState>,
    ) -> Result<(ModuleOptimizer, Self), FusedError> {
        if let Some(reason) = optimizer.accumulation_refusal() {
            return Err(FusedError::NotInState { reason });
        }
        let policies = Self {
            in_state: true,
            ..Self::default()
        };
        Ok((optimizer.into(), policies))
    }

    /// Returns these policies with another config, and `optimizer` with a place for their state and for averages: what it has
    /// there is dropped.
    pub(crate) fn with_config(
        self,
        config: FusedConfig,
        mut optimizer: ModuleOptimizer,
    ) -> Result<(Self, ModuleOptimizer), FusedError> {
        config.check(self.in_state)?;
        let policies = Self {
            config,
            adaptive: PolicyState::default(),
            ..self
        };
        if let Some(state) = policies.kept() {
            optimizer = state.join(optimizer);
        }
        if policies.config.averaging.is_some() {
            optimizer = AverageExtraState::join(optimizer);
        }
        Ok((policies, optimizer))
    }

    /// The state that records of the optimizer keep, if there is any.
    pub(crate) fn kept(&self) -> Option<&PolicyState> {
        // Lagged clipping goes by the norm of exact clipping before it, too.
        let kept = self.config.clipping.is_some() || self.config.loss_scaling.is_some();
        kept.then_some(&self.adaptive)
    }

    /// Returns the passes of a step.
    pub(crate) fn schedule(&self) -> StepSchedule {
        let overflow = self.config.loss_scaling.map(|it| it.overflow);
        match (self.config.clipping, overflow) {
            (Some(GlobalNormClippingConfig::ExactInBuffer(_)), _) => StepSchedule::Buffered,
            (Some(GlobalNormClippingConfig::Exact(_)), _) => StepSchedule::TwoPass,
            (_, Some(Overflow::SkipStep)) => StepSchedule::TwoPass,
            (None, None) => StepSchedule::OnePass,
            _ => StepSchedule::Adaptive,
        }
    }

    /// The plan of a pass; `clip` is what its gradients are multiplied by, if they are clipped.
    pub(crate) fn pipeline(
        &self,
        gradient_use: GradientUse,
        clip: Option<f64>,
    ) -> GradientPipeline {
        let accumulation = if self.config.full_precision_accumulation {
            Accumulation::InFullPrecision
        } else {
            Accumulation::AsParameter
        };
        let mut pipeline = GradientPipeline::default();
        (pipeline.gradient_use, pipeline.accumulation) = (gradient_use, accumulation);
        let schedule = self.schedule();
        if schedule != StepSchedule::OnePass {
            self.take_part(&mut pipeline, schedule, clip);
        }
        if !self.hooks.is_empty() && gradient_use.steps() {
            pipeline.hooks.extend(&self.hooks);
        }
        pipeline
    }

    /// Clips and scales in the `pipeline` of a step with this `schedule`.
    fn take_part(
        &self,
        pipeline: &mut GradientPipeline,
        schedule: StepSchedule,
        clip: Option<f64>,
    ) {
        let waits = schedule == StepSchedule::Buffered;
        pipeline.scale = self.loss_scale().map(|it| it.scale);
        pipeline.consumes_sums = pipeline.gradient_use == GradientUse::Update && waits;
        // To be known before gradients are used, or for the next step.
        let measures = match pipeline.gradient_use {
            GradientUse::Accumulate => false,
            GradientUse::Measure => {
                waits || schedule == StepSchedule::TwoPass || self.clips_lagged()
            }
            GradientUse::AccumulateInState | GradientUse::Update => self.clips_lagged(),
        };
        if measures {
            pipeline.measure(pipeline.gradient_use.steps() && !self.bear_overflow());
        }
        if !pipeline.gradient_use.steps() {
            return;
        }
        if clip.is_some() || pipeline.scale.is_some() {
            pipeline.multiply_by(clip.unwrap_or(1.0) / pipeline.scale.unwrap_or(1.0));
        }
        if self.overflow() == Some(Overflow::SkipParameter) {
            pipeline.skip_not_finite();
        }
    }

    /// What gradients that were measured to be of this norm are multiplied by, if they are clipped: lagged clipping goes by the
    /// norm before all the same.
    pub(crate) fn coefficient(&self, norm: f64) -> Option<f64> {
        if self.clips_lagged() {
            return self.lagged_coefficient();
        }
        self.config.clipping?.coefficient(norm)
    }

    /// What lagged clipping multiplies the gradients of the next pass by.
    pub(crate) fn lagged_coefficient(&self) -> Option<f64> {
        let norm = self.adaptive.lock().gradient_norm;
        self.config.clipping?.coefficient(norm?)
    }

    /// Whether a smaller scale can help against an overflow.
    pub(crate) fn can_back_off(&self) -> bool {
        let scaling = self.config.loss_scaling.zip(self.loss_scale());
        scaling.is_some_and(|(scaling, now)| scaling.growth_interval.is_none() || now.is_large())
    }

    /// Whether a step can go on with gradients that are not finite: it leaves their parameters out, or itself, and scales
    /// the loss down.
    pub(crate) fn bear_overflow(&self) -> bool {
        self.overflow() == Some(Overflow::SkipParameter) || self.can_back_off()
    }

    /// Lets them learn from a step.
    pub(crate) fn adapt(&self, norm: Option<f64>, overflowed: bool) {
        let scale = self.loss_scale();
        let mut adaptive = self.adaptive.lock();
        adaptive.gradient_norm = norm.or(adaptive.gradient_norm);
        let interval = self.config.loss_scaling.and_then(|it| it.growth_interval);
        if let (Some(scale), Some(interval)) = (scale, interval) {
            adaptive.loss_scale = Some(scale.after(interval, overflowed));
        }
    }

    fn clips_lagged(&self) -> bool {
        let clipping = self.config.clipping;
        clipping.is_some_and(|clipping| !clipping.is_exact())
    }

    /// What becomes of a step whose gradients overflow under the scale of the loss.
    fn overflow(&self) -> Option<Overflow> {
        Some(self.config.loss_scaling?.overflow)
    }

    /// The scale of the loss now.
    fn loss_scale(&self) -> Option<LossScale> {
        let scaling = self.config.loss_scaling?;
        let adaptive = self.adaptive.lock().loss_scale;
        Some(adaptive.unwrap_or_else(|| scaling.initial()))
    }
}
