use std::sync::Arc;

use burn::module::ParamGroup;
use burn::optim::ModuleOptimizer;

use super::accumulation::Accumulation;
use super::clip::GlobalNormClippingConfig;
use super::compare::{Compare, CompareLater, Unconfirmed};
use super::goal::Goal;
use super::hook::{AnyHook, Hooks};
use super::keeper::{AverageKeeper, Keeper};
use super::measure::{Measure, Norm};
use super::scale::Scale;
use super::scaling::{LeaveNotFinite, LossScaler, LossScalingConfig, Overflow};
use super::state::{LossScale, PolicyState};
use crate::error::FusedError;
use crate::optim::{AccumulateInState, InState, Ruled};

/// The policies of a fused optimizer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    clipping: Option<GlobalNormClippingConfig>,
    scaling: Option<LossScaler>,
    hooks: Hooks,
    /// Whether gradients go into the optimizer state when they are accumulated.
    in_state: bool,
    accumulation: Accumulation,
    /// Whether records of the optimizer hold averages of the weights.
    averages: bool,
    state: PolicyState,
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
        clipping.map_or(Ok(()), GlobalNormClippingConfig::check)?;
        scaling.map_or(Ok(()), LossScalingConfig::check)?;
        let policies = Self {
            clipping,
            scaling: scaling.map(|scaling| LossScaler::new(scaling, self.state.clone())),
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

    /// Goes on with [`configured`](Self::configured) policies, and with what was learned: the scale of the loss, but
    /// where it begins with another one now, and the norm that lagged clipping goes by. `optimizer` gets a place for what its
    /// records hold from now on.
    pub(crate) fn go_on_with(
        &mut self,
        configured: Self,
        optimizer: ModuleOptimizer,
    ) -> ModuleOptimizer {
        let (was_kept, averaged) = (self.keeper().is_some(), self.averages);
        if !self.scales_as(&configured) {
            self.state.set_loss_scale(configured.initial_scale());
        }
        if !configured.clips_lagged() {
            self.state.set_gradient_norm(None);
        }
        *self = configured;
        // Each place stays there.
        let optimizer = match self.keeper() {
            Some(keeper) if !was_kept => keeper.join(optimizer),
            _ => optimizer,
        };
        match averaged == self.averages {
            true => optimizer,
            false => AverageKeeper::join(optimizer),
        }
    }

    /// `optimizer` with a place for what its records hold of the policies.
    pub(crate) fn join(&self, optimizer: ModuleOptimizer) -> ModuleOptimizer {
        let optimizer = match self.keeper() {
            Some(keeper) => keeper.join(optimizer),
            None => optimizer,
        };
        match self.averages {
            true => AverageKeeper::join(optimizer),
            false => optimizer,
        }
    }

    /// Whether the scale of the loss stays what it is when `configured` takes over.
    pub(crate) fn scales_as(&self, configured: &Self) -> bool {
        self.initial_scale() == configured.initial_scale()
    }

    fn initial_scale(&self) -> Option<LossScale> {
        self.scaling.as_ref().map(LossScaler::initial)
    }

    fn clips_lagged(&self) -> bool {
        matches!(self.clipping, Some(GlobalNormClippingConfig::Lagged(_)))
    }

    pub(crate) fn push_hook(&mut self, group: ParamGroup, hook: Arc<dyn AnyHook>) {
        self.hooks.push(group, hook);
    }

    /// The same policies, which learn on their own from here.
    pub(crate) fn split(&self) -> Self {
        let state = self.state.split();
        let scaling = self.scaling.as_ref();
        Self {
            scaling: scaling.map(|scaling| scaling.with_state(state.clone())),
            hooks: self.hooks.clone(),
            state,
            ..*self
        }
    }

    /// Refuses what makes no sense together.
    fn check(&self) -> Result<(), FusedError> {
        let exact = matches!(self.clipping, Some(GlobalNormClippingConfig::Exact(_)));
        let overflow = self.scaling.as_ref().map(LossScaler::overflow);
        let in_buffer = self.accumulation == Accumulation::InFullPrecision;
        let reason = match (self.in_state, overflow) {
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

    pub(crate) fn clipping(&self) -> Option<GlobalNormClippingConfig> {
        self.clipping
    }

    pub(crate) fn scaling(&self) -> Option<&LossScaler> {
        self.scaling.as_ref()
    }

    /// What keeps the state of the policies in the records of the optimizer, if they have one.
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        let kept = self.clips_lagged() || self.scaling.is_some();
        kept.then(|| Keeper::new(self.state.clone()))
    }

    /// Whether records of the optimizer hold averages of the weights.
    pub(crate) fn averages(&self) -> bool {
        self.averages
    }

    /// What lagged clipping multiplies the gradients of the next pass by.
    pub(crate) fn lagged_coefficient(&self) -> Option<f64> {
        self.clipping?.coefficient(self.state.gradient_norm()?)
    }

    /// Lets the policies learn from a step.
    pub(crate) fn adapt(&self, norm: Option<f64>, overflowed: bool) {
        if let Some(norm) = norm {
            self.state.set_gradient_norm(Some(norm));
        }
        if let Some(scaler) = &self.scaling {
            scaler.adapt(overflowed);
        }
    }

    /// Whether gradients go into the optimizer state when they are accumulated.
    pub(crate) fn in_state(&self) -> bool {
        self.in_state
    }

    /// Whether all gradients are measured before the first is used.
    pub(crate) fn measures_first(&self) -> bool {
        let exact = matches!(self.clipping, Some(GlobalNormClippingConfig::Exact(_)));
        let skips = |scaling: &LossScaler| scaling.overflow() == Overflow::SkipStep;
        exact || self.scaling.as_ref().is_some_and(skips)
    }

    /// Whether a step can go on with gradients that are not finite: it leaves their parameters out, or itself, and scales
    /// the loss down.
    pub(crate) fn bear_overflow(&self) -> bool {
        self.scaling.as_ref().is_some_and(|scaling| {
            scaling.overflow() == Overflow::SkipParameter || scaling.can_back_off()
        })
    }

    /// The plan of a pass; `clip` is what its gradients are multiplied by, if they are clipped.
    pub(crate) fn plan(&self, goal: Goal, clip: Option<f64>) -> Plan {
        let measures = goal == Goal::Measure || goal == Goal::Update && self.clips_lagged();
        self.plan_measuring(measures, goal, clip)
    }

    /// A pass that uses gradients for nothing, and measures them only if those of a step do: that takes memory.
    pub(crate) fn dry_plan(&self) -> Plan {
        let measures = self.measures_first() || self.clips_lagged();
        self.plan_measuring(measures, Goal::Measure, None)
    }

    fn plan_measuring(&self, measures: bool, goal: Goal, clip: Option<f64>) -> Plan {
        let scale = self.scaling.as_ref().map(LossScaler::scale);
        let mut plan = Plan {
            goal,
            scale,
            accumulation: self.accumulation,
            ..Plan::default()
        };
        let mut hooks = Hooks::default();
        if measures {
            let measure = Arc::new(Measure::default());
            hooks.push(ParamGroup::all(), measure.clone());
            plan.measure = Some(measure);
        }
        if goal == Goal::Update {
            if clip.is_some() || scale.is_some() {
                let factor = clip.unwrap_or(1.0) / scale.unwrap_or(1.0);
                hooks.push(ParamGroup::all(), Arc::new(Scale(factor)));
            }
            if let Some(scaling) = &self.scaling
                && scaling.overflow() == Overflow::SkipParameter
            {
                let overflow = Arc::new(LeaveNotFinite::default());
                hooks.push(ParamGroup::all(), overflow.clone());
                plan.overflow = Some(overflow);
            }
            hooks.extend(&self.hooks);
        }
        plan.hooks = Arc::new(hooks);
        plan
    }
}

/// What happens to the gradients of a pass: they go through the hooks, then to the goal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) goal: Goal,
    pub(crate) hooks: Arc<Hooks>,
    /// What the loss is multiplied by.
    pub(crate) scale: Option<f64>,
    /// More gradients follow before the parameters move: those of this pass go into the optimizer
    /// state only.
    pub(crate) goes_on: bool,
    pub(crate) accumulation: Accumulation,
    measure: Option<Arc<Measure>>,
    overflow: Option<Arc<LeaveNotFinite>>,
    compare: Option<Arc<CompareLater>>,
}

impl Plan {
    /// The global norm of the gradients that have passed, free of the loss scale, if measured; waits for the
    /// device.
    pub(crate) fn norm(&self) -> Result<Option<Norm>, FusedError> {
        let norm = self.norm_and_confirm(&Unconfirmed::default())?;
        Ok(norm.map(|(norm, _)| norm))
    }

    /// The same, read together with what the step before has left unconfirmed; and whether that agrees.
    pub(crate) fn norm_and_confirm(
        &self,
        before: &Unconfirmed,
    ) -> Result<Option<(Norm, bool)>, FusedError> {
        let Some(measure) = &self.measure else {
            return Ok(None);
        };
        let (mut norm, agree) = measure.norm(before)?;
        norm.value /= self.scale.unwrap_or(1.0);
        Ok(Some((norm, agree)))
    }

    /// The plan that uses the gradients of which `norm` was measured, and no others.
    pub(crate) fn comparing(self, norm: Norm) -> Self {
        let measured = norm.squares;
        self.with_first_hook(Arc::new(Compare { measured }))
    }

    /// The same, where it is looked at [later](Self::leave).
    pub(crate) fn comparing_later(mut self, norm: Norm) -> Self {
        let compare = Arc::new(CompareLater::with(norm.squares));
        self.compare = Some(compare.clone());
        self.with_first_hook(compare)
    }

    fn with_first_hook(mut self, hook: Arc<dyn AnyHook>) -> Self {
        let mut hooks = Hooks::default();
        hooks.push(ParamGroup::all(), hook);
        hooks.extend(&self.hooks);
        self.hooks = Arc::new(hooks);
        self
    }

    /// Adds what is to be compared later.
    pub(crate) fn leave(&self, unconfirmed: &mut Unconfirmed) {
        if let Some(compare) = &self.compare {
            compare.leave(unconfirmed);
        }
    }

    /// Whether a gradient was not finite, if the update looks for it.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflow.as_ref().is_some_and(|found| found.found())
    }
}
