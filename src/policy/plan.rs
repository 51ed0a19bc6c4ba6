use std::sync::Arc;

use burn::module::ParamGroup;
use parking_lot::Mutex;

use super::accumulation::Accumulation;
use super::compare::{Compare, Unconfirmed};
use super::hook::Hooks;
use super::measure::{Measure, Norm};
use super::scaling::LeaveNotFinite;
use crate::error::FusedError;

/// What a finished gradient is used for, after the hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Add it to the parameter's accumulated gradient. There are no hooks.
    Accumulate,
    /// Drop it: a hook has measured it.
    Measure,
    /// Let the state of the optimizer take it: more gradients follow before the parameter moves.
    Begin,
    /// Step the parameter.
    #[default]
    Update,
}

impl Goal {
    /// Whether the optimizer gets it.
    pub(crate) fn steps(self) -> bool {
        matches!(self, Self::Begin | Self::Update)
    }
}

/// What happens to the gradients of a pass: they go through the hooks, then to the goal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) goal: Goal,
    pub(crate) hooks: Option<Arc<Hooks>>,
    /// What the loss is multiplied by.
    pub(crate) scale: Option<f64>,
    /// What was accumulated ends with this pass, however that ends: a sum is let go of when it is used.
    pub(crate) spends_sums: bool,
    pub(crate) accumulation: Accumulation,
    pub(super) measure: Option<Arc<Measure>>,
    pub(super) overflow: Option<Arc<LeaveNotFinite>>,
    pub(super) compare: Option<Arc<Compare>>,
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

    /// The plan that uses the gradients of which `norm` was measured, and no others: that is looked at in the pass, or
    /// [later](Self::leave).
    pub(crate) fn comparing(mut self, norm: Norm, later: bool) -> Self {
        let compare = Arc::new(Compare {
            measured: norm.squares,
            later: later.then(Mutex::default),
        });
        let mut hooks = Hooks::default();
        hooks.push(ParamGroup::all(), compare.clone());
        if let Some(others) = &self.hooks {
            hooks.0.extend_from_slice(&others.0);
        }
        self.compare = Some(compare);
        self.hooks = Some(Arc::new(hooks));
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
