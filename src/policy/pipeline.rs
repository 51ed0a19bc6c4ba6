use std::sync::Arc;

use burn::module::ParamGroup;

use super::accumulation::Accumulation;
use super::compare::{Compare, Losses};
use super::hook::Hooks;
use super::measure::{Measure, Norm};
use super::scaling::{Scale, SkipNotFinite};
use crate::error::FusedError;

/// The use of a complete gradient after the hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GradientUse {
    /// Add it to the parameter's accumulated gradient. There are no hooks.
    Accumulate,
    /// Drop it: a hook has measured it.
    Measure,
    /// Add it to the optimizer state: more gradients follow before the parameter is updated.
    AccumulateInState,
    /// Step the parameter.
    #[default]
    Update,
}

impl GradientUse {
    /// Returns `true` if the optimizer receives the gradient.
    pub(crate) fn steps(self) -> bool {
        matches!(self, Self::AccumulateInState | Self::Update)
    }
}

/// The processing of the gradients of a pass: hooks, then the use.
#[derive(Clone, Debug, Default)]
pub(crate) struct GradientPipeline {
    pub(crate) gradient_use: GradientUse,
    pub(crate) hooks: Hooks,
    /// The loss scale.
    pub(crate) scale: Option<f64>,
    /// `true` if accumulated sums end with this pass, even if it fails: a sum is dropped when it is used.
    pub(crate) consumes_sums: bool,
    pub(crate) accumulation: Accumulation,
    /// The losses of a step in two passes, to compare them.
    pub(crate) losses: Option<Arc<Losses>>,
    measure: Option<Arc<Measure>>,
    compare: Option<Arc<Compare>>,
    overflow: Option<Arc<SkipNotFinite>>,
}

impl GradientPipeline {
    /// Adds a hook that measures gradients. If it `fails_if_not_finite`, the pass fails at a gradient that is known not to be
    /// finite.
    pub(crate) fn measure(&mut self, fails_if_not_finite: bool) {
        let measure = Arc::new(Measure::new(fails_if_not_finite));
        self.hooks.0.push((ParamGroup::all(), measure.clone()));
        self.measure = Some(measure);
    }

    /// Adds a hook that multiplies gradients by `factor`. If it `fails_on_overflow`, the pass fails at a product that overflows in f16.
    pub(crate) fn multiply_by(&mut self, factor: f64, fails_on_overflow: bool) {
        let scale = Arc::new(Scale {
            factor,
            fails_on_overflow,
        });
        self.hooks.0.push((ParamGroup::all(), scale));
    }

    /// Adds a hook that skips gradients that are not finite.
    pub(crate) fn skip_not_finite(&mut self) {
        let overflow = Arc::new(SkipNotFinite::default());
        self.hooks.0.push((ParamGroup::all(), overflow.clone()));
        self.overflow = Some(overflow);
    }

    /// Returns the global norm of the gradients without the loss scale, if the pass measures. Waits for the device.
    pub(crate) fn norm(&self) -> Result<Option<Norm>, FusedError> {
        let Some(measure) = &self.measure else {
            return Ok(None);
        };
        let mut norm = measure.norm()?;
        norm.value /= self.scale.unwrap_or(1.0);
        Ok(Some(norm))
    }

    /// Adds a hook that fails the pass if the gradients are not those that `norm` was measured from.
    pub(crate) fn compare(&mut self, norm: Norm) {
        let compare = Arc::new(Compare::new(norm));
        self.hooks.0.insert(0, (ParamGroup::all(), compare.clone()));
        self.compare = Some(compare);
    }

    /// Returns an error if a measured gradient was not compared.
    pub(crate) fn finish_comparison(&self) -> Result<(), FusedError> {
        self.compare.as_ref().map_or(Ok(()), |it| it.finish())
    }

    /// Returns `true` if a gradient was found not to be finite.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflow.as_ref().is_some_and(|found| found.found())
    }
}
