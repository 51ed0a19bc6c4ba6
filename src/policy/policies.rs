use std::sync::Arc;

use burn::optim::ModuleOptimizer;

use super::accumulation::Accumulation;
use super::adaptive::{Adaptive, Passes};
use super::clip::GlobalNormClippingConfig;
use super::hook::Hooks;
use super::keeper::AverageKeeper;
use super::plan::{Goal, Plan};
use super::scaling::{LossScalingConfig, Overflow};
use crate::error::FusedError;
use crate::optim::{AccumulateInState, InState, Ruled};

/// The policies of a fused optimizer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) adaptive: Adaptive,
    pub(crate) hooks: Hooks,
    /// Whether gradients go into the optimizer state when they are accumulated.
    pub(crate) in_state: bool,
    accumulation: Accumulation,
    /// Whether records of the optimizer hold averages of the weights.
    pub(crate) averages: bool,
}

impl Policies {
    /// The same, but for these; refuses what makes no sense.
    pub(crate) fn configured(
        &self,
        clipping: Option<GlobalNormClippingConfig>,
        scaling: Option<LossScalingConfig>,
        accumulation: Accumulation,
        averages: bool,
    ) -> Result<Self, FusedError> {
        let state = self.adaptive.state.clone();
        let policies = Self {
            adaptive: Adaptive::new(clipping, scaling, state)?,
            accumulation,
            averages,
            ..self.clone()
        };
        policies.check()?;
        Ok(policies)
    }

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
        Ok((InState::new(optimizer).into(), policies))
    }

    /// Takes over [`configured`](Self::configured) policies, and goes on with what was learned: the scale of the loss, but
    /// where it begins with another one now, and the norm that lagged clipping goes by. What is returned gives an optimizer a
    /// place for what its records hold from now on.
    pub(crate) fn reconfigure(
        &mut self,
        configured: Self,
    ) -> impl Fn(ModuleOptimizer) -> ModuleOptimizer + use<> {
        let (was_kept, averaged) = (self.adaptive.kept().is_some(), self.averages);
        let scales_as = self.scales_as(&configured);
        *self = configured;
        let mut learned = self.adaptive.state.lock();
        if !scales_as {
            learned.loss_scale = self.adaptive.initial_scale();
        }
        if !self.adaptive.clips_lagged() {
            learned.gradient_norm = None;
        }
        drop(learned);
        // Each place stays there.
        let kept = self.adaptive.kept().filter(|_| !was_kept).cloned();
        let changes = averaged != self.averages;
        move |mut optimizer| {
            if let Some(state) = &kept {
                optimizer = state.join(optimizer);
            }
            if changes {
                optimizer = AverageKeeper::join(optimizer);
            }
            optimizer
        }
    }

    /// Whether the scale of the loss stays what it is when `configured` takes over.
    pub(crate) fn scales_as(&self, configured: &Self) -> bool {
        self.adaptive.initial_scale() == configured.adaptive.initial_scale()
    }

    /// The same policies, which learn on their own from here.
    pub(crate) fn split(&self) -> Self {
        Self {
            adaptive: self.adaptive.split(),
            ..self.clone()
        }
    }

    /// Refuses what makes no sense together.
    fn check(&self) -> Result<(), FusedError> {
        let exact = self.adaptive.clips_exactly();
        let in_buffer = self.accumulation == Accumulation::InFullPrecision;
        let reason = match (self.in_state, self.adaptive.overflow()) {
            (true, _) if in_buffer => {
                "gradients that go into the optimizer state are in no buffer whose precision could be \
                 chosen: use one of the two"
            }
            (true, _) if exact => {
                "exact clipping needs the norm of the summed gradients, and those that went into \
                 the optimizer state are gone: use `GlobalNormClippingConfig::Lagged`, or accumulate in \
                 a buffer"
            }
            (true, Some(Overflow::SkipStep)) => {
                "a step can't be skipped when some of its gradients are in the optimizer state \
                 already: use `Overflow::SkipParameter`, or accumulate in a buffer"
            }
            (_, Some(Overflow::SkipParameter)) if exact => {
                "exact clipping measures all gradients before the first update, so the whole step \
                 can be skipped: use `Overflow::SkipStep`"
            }
            _ => return Ok(()),
        };
        Err(FusedError::Combination { reason })
    }

    /// The plan of a pass; `clip` is what its gradients are multiplied by, if they are clipped.
    pub(crate) fn plan(&self, goal: Goal, clip: Option<f64>) -> Plan {
        let mut plan = Plan {
            goal,
            accumulation: self.accumulation,
            ..Plan::default()
        };
        let mut hooks = Hooks::default();
        if self.adaptive.passes() != Passes::One {
            self.adaptive.take_part(&mut plan, &mut hooks, clip);
        }
        if goal.steps() {
            hooks.0.extend_from_slice(&self.hooks.0);
        }
        plan.hooks = (!hooks.0.is_empty()).then(|| Arc::new(hooks));
        plan
    }

    /// A pass that uses gradients for nothing, and measures them only if those of a step do: that takes memory.
    pub(crate) fn dry_plan(&self) -> Plan {
        let mut plan = self.plan(Goal::Measure, None);
        let measures = matches!(self.adaptive.passes(), Passes::Two | Passes::Waiting);
        if !measures && !self.adaptive.clips_lagged() {
            (plan.hooks, plan.measure) = (None, None);
        }
        plan
    }
}
