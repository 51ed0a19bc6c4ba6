use std::sync::Arc;

use burn::module::ParamGroup;

use super::clip::GlobalNormClippingConfig;
use super::hook::Hooks;
use super::measure::Measure;
use super::plan::{Goal, Plan};
use super::scaling::{LeaveNotFinite, LossScalingConfig, Overflow, Scale};
use super::state::{LossScale, PolicyState};
use crate::error::FusedError;

/// Policies that go by the gradients of whole steps, and learn from one for the next: clipping by the global norm, scaling of
/// the loss, both, or neither.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adaptive {
    pub(crate) clipping: Option<GlobalNormClippingConfig>,
    pub(super) scaling: Option<LossScalingConfig>,
    pub(super) state: PolicyState,
}

/// In which passes a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    /// One, whose gradients are used as they come. There are no policies.
    One,
    /// The same, from which the policies learn for the next.
    Learning,
    /// Two, of which the first measures all gradients before the second uses any.
    Two,
    /// One, whose gradients wait in the buffer until all are measured.
    Waiting,
}

/// A scale that halved to this finds gradients that are not finite without its doing.
const SMALLEST: f64 = 1.0 / 65536.0;

impl Adaptive {
    /// Refuses what makes no sense. What they learn goes into `state`.
    pub(super) fn new(
        clipping: Option<GlobalNormClippingConfig>,
        scaling: Option<LossScalingConfig>,
        state: PolicyState,
    ) -> Result<Self, FusedError> {
        clipping.map_or(Ok(()), GlobalNormClippingConfig::check)?;
        scaling.map_or(Ok(()), LossScalingConfig::check)?;
        Ok(Self {
            clipping,
            scaling,
            state,
        })
    }

    /// In which passes they make a step.
    pub(crate) fn passes(&self) -> Passes {
        match (self.clipping, self.overflow()) {
            (Some(GlobalNormClippingConfig::ExactInBuffer(_)), _) => Passes::Waiting,
            (Some(GlobalNormClippingConfig::Exact(_)), _) => Passes::Two,
            (_, Some(Overflow::SkipStep)) => Passes::Two,
            (None, None) => Passes::One,
            _ => Passes::Learning,
        }
    }

    /// The same, which learn on their own from here.
    pub(super) fn split(&self) -> Self {
        Self {
            state: self.state.split(),
            ..*self
        }
    }

    /// The state that records of the optimizer keep, if there is any.
    pub(crate) fn kept(&self) -> Option<&PolicyState> {
        let kept = self.clips_lagged() || self.scaling.is_some();
        kept.then_some(&self.state)
    }

    pub(super) fn clips_lagged(&self) -> bool {
        matches!(self.clipping, Some(GlobalNormClippingConfig::Lagged(_)))
    }

    pub(super) fn clips_exactly(&self) -> bool {
        self.clipping.is_some() && !self.clips_lagged()
    }

    /// What becomes of a step whose gradients overflow under the scale of the loss.
    pub(super) fn overflow(&self) -> Option<Overflow> {
        Some(self.scaling?.overflow)
    }

    /// Takes part in the `plan` of a pass, and in its `hooks`; `clip` is what gradients are multiplied by, if they are clipped.
    pub(super) fn take_part(&self, plan: &mut Plan, hooks: &mut Hooks, clip: Option<f64>) {
        let steps = plan.goal.steps();
        plan.scale = self.loss_scale().map(|it| it.scale);
        plan.spends_sums = plan.goal == Goal::Update && self.passes() == Passes::Waiting;
        if plan.goal == Goal::Measure || steps && self.clips_lagged() {
            let measure = Arc::new(Measure::default());
            hooks.push(ParamGroup::all(), measure.clone());
            plan.measure = Some(measure);
        }
        if steps && (clip.is_some() || plan.scale.is_some()) {
            let factor = clip.unwrap_or(1.0) / plan.scale.unwrap_or(1.0);
            hooks.push(ParamGroup::all(), Arc::new(Scale(factor)));
        }
        if steps && self.overflow() == Some(Overflow::SkipParameter) {
            let overflow = Arc::new(LeaveNotFinite::default());
            hooks.push(ParamGroup::all(), overflow.clone());
            plan.overflow = Some(overflow);
        }
    }

    /// What gradients that were measured to be of this norm are multiplied by, if they are clipped: lagged clipping goes by the
    /// norm before all the same.
    pub(crate) fn coefficient(&self, norm: f64) -> Option<f64> {
        if self.clips_lagged() {
            return self.lagged_coefficient();
        }
        self.clipping?.coefficient(norm)
    }

    /// What lagged clipping multiplies the gradients of the next pass by.
    pub(crate) fn lagged_coefficient(&self) -> Option<f64> {
        let norm = self.state.lock().gradient_norm;
        self.clipping?.coefficient(norm?)
    }

    /// The scale of the loss in the first step.
    pub(super) fn initial_scale(&self) -> Option<LossScale> {
        Some(LossScale {
            scale: self.scaling?.initial_scale,
            good_steps: 0,
        })
    }

    /// And now.
    pub(super) fn loss_scale(&self) -> Option<LossScale> {
        let initial = self.initial_scale()?;
        Some(self.state.lock().loss_scale.unwrap_or(initial))
    }

    /// Whether a smaller scale can help against an overflow.
    pub(crate) fn can_back_off(&self) -> bool {
        let is_static = |config: LossScalingConfig| config.growth_interval.is_none();
        let is_large = || self.loss_scale().is_some_and(|it| it.scale > SMALLEST);
        self.scaling
            .is_some_and(|config| is_static(config) || is_large())
    }

    /// Whether a step can go on with gradients that are not finite: it leaves their parameters out, or itself, and scales
    /// the loss down.
    pub(crate) fn bear_overflow(&self) -> bool {
        self.overflow() == Some(Overflow::SkipParameter) || self.can_back_off()
    }

    /// Lets them learn from a step.
    pub(crate) fn adapt(&self, norm: Option<f64>, overflowed: bool) {
        let scale = self.loss_scale();
        let mut learned = self.state.lock();
        learned.gradient_norm = norm.or(learned.gradient_norm);
        let interval = self.scaling.and_then(|config| config.growth_interval);
        if let (Some(LossScale { scale, good_steps }), Some(interval)) = (scale, interval) {
            let (scale, good_steps) = match good_steps + 1 {
                _ if overflowed => (scale / 2.0, 0),
                steps if steps >= interval => (scale * 2.0, 0),
                steps => (scale, steps),
            };
            learned.loss_scale = Some(LossScale { scale, good_steps });
        }
    }
}
