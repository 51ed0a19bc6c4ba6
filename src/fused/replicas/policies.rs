//! The policies of replicas: those of a [`FusedOptimizer`], for the sums of all ranks.

use burn::module::{Module, ParamGroup};

use super::FusedReplicas;
use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::policy::{GlobalNormClippingConfig, GradientHook, LossScalingConfig};

impl<M: Module> FusedReplicas<M> {
    fn chosen(
        self,
        choose: impl FnOnce(FusedOptimizer<M>) -> Result<FusedOptimizer<M>, FusedError>,
    ) -> Result<Self, FusedError> {
        let first = choose(self.first)?;
        Ok(Self { first, ..self })
    }

    /// Clips the gradients of every step by their global norm, which is that of the sums over all ranks, as
    /// [`FusedOptimizer::with_clipping`].
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_with_clipping`](Self::try_with_clipping) returns.
    #[must_use]
    pub fn with_clipping(self, clipping: GlobalNormClippingConfig) -> Self {
        self.try_with_clipping(clipping)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_clipping`](Self::with_clipping).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_with_clipping`].
    pub fn try_with_clipping(self, clipping: GlobalNormClippingConfig) -> Result<Self, FusedError> {
        self.chosen(|first| first.try_with_clipping(clipping))
    }

    /// Scales the loss of every rank, and the gradients back, as [`FusedOptimizer::with_loss_scaling`]: one overflow
    /// anywhere counts for all.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_with_loss_scaling`](Self::try_with_loss_scaling) returns.
    #[must_use]
    pub fn with_loss_scaling(self, scaling: LossScalingConfig) -> Self {
        self.try_with_loss_scaling(scaling)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_loss_scaling`](Self::with_loss_scaling).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_with_loss_scaling`].
    pub fn try_with_loss_scaling(self, scaling: LossScalingConfig) -> Result<Self, FusedError> {
        self.chosen(|first| first.try_with_loss_scaling(scaling))
    }

    /// Adds up the gradients of micro-batches in f32, as [`FusedOptimizer::with_full_precision_accumulation`]. Those of
    /// the ranks are added up in their own type in a step that has no micro-batches before it.
    ///
    /// # Panics
    ///
    /// With the message of the error that
    /// [`try_with_full_precision_accumulation`](Self::try_with_full_precision_accumulation) returns.
    #[must_use]
    pub fn with_full_precision_accumulation(self) -> Self {
        self.try_with_full_precision_accumulation()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_full_precision_accumulation`](Self::with_full_precision_accumulation).
    ///
    /// # Errors
    ///
    /// As [`FusedOptimizer::try_with_full_precision_accumulation`].
    pub fn try_with_full_precision_accumulation(self) -> Result<Self, FusedError> {
        self.chosen(FusedOptimizer::try_with_full_precision_accumulation)
    }

    /// Calls `hook` with the gradient of every parameter in `group`, summed over all ranks, as
    /// [`FusedOptimizer::with_hook`]. It is called on the thread of some rank, with the value on the device of the
    /// owner.
    #[must_use]
    pub fn with_hook(self, group: ParamGroup, hook: impl GradientHook) -> Self {
        let first = self.first.with_hook(group, hook);
        Self { first, ..self }
    }

    /// Chooses what becomes of the blocks under gradient checkpointing on every rank, as
    /// [`FusedOptimizer::with_gradient_checkpointing`].
    #[must_use]
    pub fn with_gradient_checkpointing(self, config: GradientCheckpointingConfig) -> Self {
        let first = self.first.with_gradient_checkpointing(config);
        Self { first, ..self }
    }
}
