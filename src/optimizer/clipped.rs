//! Clipping by the global norm.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;

use super::FusedOptimizer;
use super::replay::Replay;
use crate::error::FusedError;
use crate::loss::Loss;
use crate::pass::Goal;
use crate::policy::GlobalNormClipping;
use crate::slot::Statistics;

impl<M: Module> FusedOptimizer<M> {
    /// Clips the gradients of every step by their global norm.
    ///
    /// [`last_step`](Self::last_step) tells the norm and the coefficient. Clipping by value and by
    /// the norm of each parameter's own gradient are Burn's, set on the optimizer's config, and come
    /// after this one.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_with_clipping`](Self::try_with_clipping) returns.
    #[must_use]
    pub fn with_clipping(self, clipping: GlobalNormClipping) -> Self {
        self.try_with_clipping(clipping)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_clipping`](Self::with_clipping).
    ///
    /// # Errors
    ///
    /// If the largest norm is not positive.
    pub fn try_with_clipping(mut self, clipping: GlobalNormClipping) -> Result<Self, FusedError> {
        let max_norm = clipping.max_norm();
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(FusedError::MaxNorm { max_norm });
        }
        self.pass
            .set_measures(matches!(clipping, GlobalNormClipping::Lagged(_)));
        self.clipping = Some(clipping);
        Ok(self)
    }

    /// [`step`](Self::step) with a closure that may run twice: what
    /// [exact clipping](GlobalNormClipping::Exact) needs. Without it, it runs once.
    ///
    /// Both runs see the same random numbers, so dropout drops the same elements: their seed is
    /// drawn from the generator of the device before the first. Burn's generators are shared by all
    /// threads, so another thread must not draw from them meanwhile. Running statistics are updated
    /// once. The output of the second run is returned.
    ///
    /// # Panics
    ///
    /// As [`step`](Self::step).
    pub fn step_repeatable<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> L {
        self.try_step_repeatable(learning_rate, forward)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`step_repeatable`](Self::step_repeatable).
    ///
    /// # Errors
    ///
    /// If the loss depends on no trainable parameter, or the norm is not finite. Nothing has changed
    /// then.
    pub fn try_step_repeatable<L: Loss>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        forward: impl Fn(&M) -> L,
    ) -> Result<L, FusedError> {
        let Some(clipping @ GlobalNormClipping::Exact(_)) = self.clipping else {
            return self.try_step(learning_rate, forward);
        };
        let random = Replay::new(self.form.module.devices());
        let statistics = Statistics::of(&self.form.module, self.form.inventory());
        random.start();
        let measured = self.pass_of_loss(Goal::Measure, &forward);
        let module = self.form.module.clone();
        self.form.module = statistics.put_back(module);
        measured?;

        let norm = self.report.gradient_norm.unwrap_or_default();
        if !norm.is_finite() {
            return Err(FusedError::NormNotFinite { norm });
        }
        self.pass.set_learning_rate(learning_rate.into());
        self.pass.set_coefficient(clipping.coefficient(norm));
        random.start();
        let loss = self.pass_of_loss(Goal::Update, forward)?;
        self.report.gradient_norm = Some(norm);
        Ok(loss)
    }

    /// What lagged clipping multiplies the gradients of the next pass by.
    pub(super) fn lagged_coefficient(&self) -> Option<f64> {
        self.clipping?.coefficient(self.gradient_norm?)
    }
}
