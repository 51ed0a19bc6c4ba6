use std::sync::Arc;

use burn::module::ParamGroup;

use super::accumulation::Accumulation;
use super::compare::Compare;
use super::hook::Hooks;
use super::measure::{Measure, Norm};
use super::scaling::{Scale, SkipNotFinite};
use crate::error::FusedError;

/// What a finished gradient is used for, after the hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GradientUse {
    /// Add it to the parameter's accumulated gradient. There are no hooks.
    Accumulate,
    /// Drop it: a hook has measured it.
    Measure,
    /// Let the state of the optimizer take it: more gradients follow before the parameter moves.
    AccumulateInState,
    /// Step the parameter.
    #[default]
    Update,
}

impl GradientUse {
    /// Whether the optimizer gets it.
    pub(crate) fn steps(self) -> bool {
        matches!(self, Self::AccumulateInState | Self::Update)
    }
}

/// What happens to the gradients of a pass: they go through the hooks, then to the goal.
#[derive(Clone, Debug, Default)]
pub(crate) struct GradientPipeline {
    pub(crate) gradient_use: GradientUse,
    pub(crate) hooks: Hooks,
    /// What the loss is multiplied by.
    pub(crate) scale: Option<f64>,
    /// What was accumulated ends with this pass, however that ends: a sum is let go of when it is used.
    pub(crate) consumes_sums: bool,
    pub(crate) accumulation: Accumulation,
    measure: Option<Arc<Measure>>,
    overflow: Option<Arc<SkipNotFinite>>,
}

impl GradientPipeline {
    /// Gradients are measured. If it `stops`, the pass ends at one that is known not to be finite.
    pub(crate) fn measure(&mut self, stops: bool) {
        let measure = Arc::new(Measure::new(stops));
        self.hooks.push(ParamGroup::all(), measure.clone());
        self.measure = Some(measure);
    }

    /// Gradients are multiplied by this factor.
    pub(crate) fn multiply_by(&mut self, factor: f64) {
        self.hooks.push(ParamGroup::all(), Arc::new(Scale(factor)));
    }

    /// Gradients that are not finite are not used.
    pub(crate) fn skip_not_finite(&mut self) {
        let overflow = Arc::new(SkipNotFinite::default());
        self.hooks.push(ParamGroup::all(), overflow.clone());
        self.overflow = Some(overflow);
    }

    /// Returns the global norm of the gradients that have passed, free of the loss scale, if measured. Waits for the device.
    pub(crate) fn norm(&self) -> Result<Option<Norm>, FusedError> {
        let Some(measure) = &self.measure else {
            return Ok(None);
        };
        let mut norm = measure.norm()?;
        norm.value /= self.scale.unwrap_or(1.0);
        Ok(Some(norm))
    }

    /// Returns the plan that refuses gradients other than those that `norm` was measured of.
    pub(crate) fn comparing(mut self, norm: Norm) -> Self {
        let measured = norm.squares;
        self.hooks.put_first(Arc::new(Compare { measured }));
        self
    }

    /// Whether a gradient was not finite, if the update looks for it.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflow.as_ref().is_some_and(|found| found.found())
    }
}
