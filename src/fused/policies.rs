use backburn_optim::{AccumulateInState, AverageState, ElementWiseOptimizer};
use burn::optim::ModuleOptimizer;

use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::pass::Observers;
use crate::policy::{
    Accumulation, GlobalNormClippingConfig, GradientPipeline, GradientUse, Hooks, LossScale,
    Overflow, PolicyState,
};
use crate::shared_optimizer::{EXTRA_STATE_ID, ExtraState};

/// The gradient policies of a training: the config, the hooks and the adaptive state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) config: FusedConfig,
    pub(crate) hooks: Hooks,
    pub(super) observers: Observers,
    /// `true` if accumulated gradients are added to the optimizer state.
    pub(crate) in_state: bool,
    /// The passes of a step, by the config.
    pub(super) schedule: StepSchedule,
    /// State that is adapted from step to step.
    adaptive: PolicyState,
}

/// The passes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepSchedule {
    /// One pass, which applies gradients as they arrive. No policy depends on the gradients of whole steps.
    #[default]
    OnePass,
    /// One pass, whose gradients adapt the policies for the next step.
    Adaptive,
    /// Two passes: the first measures all gradients, the second applies them.
    TwoPass,
    /// One pass of the closure, which stores the gradients, then two without a closure, which measure and apply them.
    Buffered,
}

impl StepSchedule {
    fn of(config: &FusedConfig) -> Self {
        let overflow = config.loss_scaling.map(|it| it.overflow);
        match (config.clipping, overflow) {
            (Some(GlobalNormClippingConfig::ExactInBuffer(_)), _) => Self::Buffered,
            (Some(GlobalNormClippingConfig::Exact(_)), _) => Self::TwoPass,
            (_, Some(Overflow::SkipStep)) => Self::TwoPass,
            (None, None) => Self::OnePass,
            _ => Self::Adaptive,
        }
    }
}

impl Policies {
    /// Creates the policies of a training whose `optimizer` accumulates in its state.
    pub(crate) fn in_state_of(
        optimizer: ElementWiseOptimizer<impl AccumulateInState>,
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

    /// Returns these policies with another config, and `optimizer` registered for their extra state and averages.
    /// Policy state that it had is dropped.
    pub(crate) fn with_config(
        self,
        config: FusedConfig,
        mut optimizer: ModuleOptimizer,
    ) -> Result<(Self, ModuleOptimizer), FusedError> {
        config.check(self.in_state)?;
        PolicyState::drop_in(&mut optimizer, [(EXTRA_STATE_ID.into(), 1)]);
        let policies = Self {
            schedule: StepSchedule::of(&config),
            config,
            adaptive: PolicyState::default(),
            ..self
        };
        let optimizer = policies.join(optimizer);
        Ok((policies, optimizer))
    }

    /// Returns `optimizer` registered for the extra state and the averages of these policies.
    pub(crate) fn join(&self, mut optimizer: ModuleOptimizer) -> ModuleOptimizer {
        if self.recorded_state().is_some() {
            optimizer = PolicyState::join(optimizer);
        }
        match self.config.averaging {
            Some(_) => AverageState::join(optimizer),
            None => optimizer,
        }
    }

    /// Returns the policy state that optimizer records contain, if there is any.
    pub(crate) fn recorded_state(&self) -> Option<&PolicyState> {
        // Lagged clipping also uses the norm of earlier exact clipping.
        let kept = self.config.clipping.is_some() || self.config.loss_scaling.is_some();
        kept.then_some(&self.adaptive)
    }

    /// Returns the gradient pipeline of a pass; `clip` is the clipping coefficient, if gradients are clipped.
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
        if self.schedule != StepSchedule::OnePass {
            self.add_clipping_and_scaling(&mut pipeline, clip);
        }
        if !self.hooks.0.is_empty() && gradient_use.steps() {
            pipeline.hooks.0.extend_from_slice(&self.hooks.0);
        }
        pipeline
    }

    /// Adds clipping and scaling to a pipeline.
    fn add_clipping_and_scaling(&self, pipeline: &mut GradientPipeline, clip: Option<f64>) {
        let is_buffered = self.schedule == StepSchedule::Buffered;
        pipeline.scale = self.loss_scale().map(|it| it.scale);
        pipeline.consumes_sums = pipeline.gradient_use == GradientUse::Update && is_buffered;
        // The norm is needed before gradients are applied, or for the next step.
        let measures = match pipeline.gradient_use {
            GradientUse::Accumulate => false,
            GradientUse::Measure => {
                is_buffered || self.schedule == StepSchedule::TwoPass || self.clips_lagged()
            }
            GradientUse::AccumulateInState | GradientUse::Update => {
                self.clips_lagged() && self.schedule == StepSchedule::Adaptive
            }
        };
        if measures {
            pipeline.measure(pipeline.gradient_use.steps() && !self.tolerates_overflow());
        }
        // Under this schedule, only a dry run measures. It takes as much memory as a step.
        let is_dry_run = pipeline.gradient_use == GradientUse::Measure
            && self.schedule == StepSchedule::Adaptive;
        if !pipeline.gradient_use.steps() && !is_dry_run {
            return;
        }
        if clip.is_some() || pipeline.scale.is_some() {
            let (clip, scale) = (clip.unwrap_or(1.0), pipeline.scale.unwrap_or(1.0));
            let factors = match clip / scale {
                // The quotient is too small for f32, in which gradients are multiplied.
                factor if factor < f64::from(f32::MIN_POSITIVE) => vec![1.0 / scale, clip],
                factor => vec![factor],
            };
            for factor in factors {
                // A finite gradient may be too large for f16 without a scale below 1.
                let fails_on_overflow = factor > 1.0 && self.overflow() == Some(Overflow::SkipStep);
                pipeline.multiply_by(factor, fails_on_overflow);
            }
        }
        if self.overflow() == Some(Overflow::SkipParameter) {
            pipeline.skip_not_finite();
        }
    }

    /// Returns the clipping coefficient for gradients of this norm, if they are clipped. Lagged clipping always uses the
    /// previous norm.
    pub(crate) fn coefficient(&self, norm: f64) -> Option<f64> {
        if self.clips_lagged() {
            return self.lagged_coefficient();
        }
        self.config.clipping?.coefficient(norm)
    }

    /// Returns the coefficient of lagged clipping for the next pass.
    pub(crate) fn lagged_coefficient(&self) -> Option<f64> {
        let norm = self.adaptive.lock().gradient_norm;
        self.config.clipping?.coefficient(norm?)
    }

    /// Returns `true` if a smaller scale may avoid an overflow.
    pub(crate) fn can_back_off(&self) -> bool {
        let scaling = self.config.loss_scaling.zip(self.loss_scale());
        scaling.is_some_and(|(scaling, now)| scaling.growth_interval.is_none() || now.is_large())
    }

    /// Returns `true` if a step handles gradients that are not finite: it skips their parameters, or itself, and
    /// reduces the loss scale.
    pub(crate) fn tolerates_overflow(&self) -> bool {
        self.overflow() == Some(Overflow::SkipParameter) || self.can_back_off()
    }

    /// Adapts the policies after a step.
    pub(crate) fn adapt(&self, norm: Option<f64>, overflowed: bool) {
        let scale = self.loss_scale();
        let mut adaptive = self.adaptive.lock();
        // The next step is clipped by the last norm that is finite.
        let norm = norm.filter(|norm| norm.is_finite());
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

    /// Returns the reaction to an overflow, with loss scaling.
    fn overflow(&self) -> Option<Overflow> {
        Some(self.config.loss_scaling?.overflow)
    }

    /// Returns the current loss scale.
    fn loss_scale(&self) -> Option<LossScale> {
        let scaling = self.config.loss_scaling?;
        let adaptive = self.adaptive.lock().loss_scale;
        Some(adaptive.unwrap_or_else(|| scaling.initial()))
    }
}
