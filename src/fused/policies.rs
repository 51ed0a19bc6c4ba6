//! What a fused optimizer does with gradients besides stepping with them.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::gradient_checkpointing::GradientCheckpointingConfig;
use crate::optim::{AccumulateInState, InState};
use crate::policy::{GlobalNormClippingConfig, GradientHook, LossScalingConfig, Policies};

impl<M: Module> FusedOptimizer<M> {
    /// A fused optimizer whose [`accumulate`](Self::accumulate) puts the gradients of micro-batches
    /// straight into the state of `optimizer`, and releases them: accumulation without a buffer.
    ///
    /// For [`Sgd`](crate::optim::Sgd) the result is that of stepping with the sum of the gradients,
    /// but for rounding. For [`Adam`](crate::optim::Adam) and [`AdamW`](crate::optim::AdamW) it is an
    /// approximation of the second moment, whose formula [`AccumulateInState`] tells. Without
    /// micro-batches it is the optimizer itself. A record taken between two micro-batches holds the
    /// state with those that came, and loads as if their group had ended.
    ///
    /// ```
    /// use backburn::FusedOptimizer;
    /// use backburn::optim::AdamWConfig;
    /// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(2, 1).init(&device);
    /// # let [x, y] = [Tensor::<2>::ones([3, 2], &device), Tensor::<2>::ones([3, 2], &device)];
    ///
    /// let mut fused = FusedOptimizer::accumulating_in_state(model, AdamWConfig::new().build());
    /// fused.accumulate(|model| model.forward(x).mean() / 2.0);
    /// fused.step(1e-3, |model| model.forward(y).mean() / 2.0);
    /// ```
    ///
    /// Optimizers without a fitting state are refused by the compiler:
    ///
    /// ```compile_fail
    /// # use backburn::FusedOptimizer;
    /// # use burn::{nn::LinearConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// use backburn::optim::LionConfig;
    ///
    /// let fused = FusedOptimizer::accumulating_in_state(model, LionConfig::new().build());
    /// ```
    ///
    /// # Panics
    ///
    /// With the message of the error that
    /// [`try_accumulating_in_state`](Self::try_accumulating_in_state) returns.
    pub fn accumulating_in_state(model: M, optimizer: impl AccumulateInState) -> Self {
        Self::try_accumulating_in_state(model, optimizer).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`accumulating_in_state`](Self::accumulating_in_state).
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new); if the options of the optimizer don't allow it (an L2 penalty in
    /// `Adam`, no momentum in `Sgd`).
    pub fn try_accumulating_in_state(
        model: M,
        optimizer: impl AccumulateInState,
    ) -> Result<Self, FusedError> {
        let (optimizer, policies) = in_state(optimizer)?;
        Self::with_policies(model, optimizer, policies)
    }

    /// A fused optimizer with policies that were put together elsewhere, and their state in the
    /// optimizer.
    pub(crate) fn with_policies(
        model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
    ) -> Result<Self, FusedError> {
        let mut fused = Self::try_new(model, optimizer)?;
        fused.policies = policies;
        fused.restore_policies();
        Ok(fused)
    }

    /// Clips the gradients of every step by their global norm.
    ///
    /// [`last_step`](Self::last_step) tells the norm and the coefficient. The norm that lagged clipping
    /// goes by is part of the [record](Self::to_record). Clipping by value and by
    /// the norm of each parameter's own gradient are Burn's, set on the optimizer's config, and come
    /// after this one.
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
    /// If the largest norm is not positive, or clipping makes no sense with the other policies.
    pub fn try_with_clipping(
        mut self,
        clipping: GlobalNormClippingConfig,
    ) -> Result<Self, FusedError> {
        self.policies.set_clipping(clipping)?;
        self.keep_policies();
        Ok(self)
    }

    /// Scales the loss of every pass, and the gradients back.
    ///
    /// [`last_step`](Self::last_step) tells the scale and whether the gradients overflowed. The scale
    /// is part of the [record](Self::to_record), and of no other way to hand the optimizer on.
    ///
    /// # Panics
    ///
    /// With the message of the error that
    /// [`try_with_loss_scaling`](Self::try_with_loss_scaling) returns.
    #[must_use]
    pub fn with_loss_scaling(self, scaling: LossScalingConfig) -> Self {
        self.try_with_loss_scaling(scaling)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`with_loss_scaling`](Self::with_loss_scaling).
    ///
    /// # Errors
    ///
    /// If the scale is not positive and finite, the growth interval is zero, or loss scaling makes no
    /// sense with the other policies.
    pub fn try_with_loss_scaling(mut self, scaling: LossScalingConfig) -> Result<Self, FusedError> {
        self.policies.set_scaling(scaling)?;
        self.keep_policies();
        Ok(self)
    }

    /// Adds up the gradients of micro-batches in f32 where those of a parameter are in bf16 or f16, and so those of blocks that run twice
    /// and share a parameter, as the chunks of [`LinearCrossEntropyLoss`](crate::LinearCrossEntropyLoss) share the head; the sum is
    /// rounded once, when it is used. Such a buffer takes 4 bytes an element. Without it sums are in the type of the
    /// gradients, as those of Burn's [`GradientsAccumulator`](burn::optim::GradientsAccumulator) and of its backward pass.
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
    /// If gradients are accumulated in the optimizer state, which is no buffer.
    pub fn try_with_full_precision_accumulation(mut self) -> Result<Self, FusedError> {
        self.policies.set_accumulation_in_full_precision()?;
        Ok(self)
    }

    /// Calls `hook` with every finished gradient of the parameters in `group`, after the hooks before
    /// it.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.policies.push_hook(group, Arc::new(hook));
        self
    }

    /// Chooses which of the blocks under [`gradient_checkpointing`](crate::gradient_checkpointing()) run twice, and where
    /// their inputs wait; without it, all do, and inputs wait where they are.
    ///
    /// ```
    /// # use backburn::{GradientCheckpointingConfig, FusedOptimizer};
    /// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// let config = GradientCheckpointingConfig::new().with_keep_activations(vec![false, true]);
    /// let fused = FusedOptimizer::new(model, SgdConfig::new().init()).with_gradient_checkpointing(config);
    /// ```
    #[must_use]
    pub fn with_gradient_checkpointing(
        mut self,
        gradient_checkpointing: GradientCheckpointingConfig,
    ) -> Self {
        self.gradient_checkpointing = gradient_checkpointing;
        self
    }

    /// Makes the state of the policies part of the optimizer's records.
    pub(super) fn keep_policies(&self) {
        if let Some(keeper) = self.policies.keeper() {
            self.session
                .update()
                .change(|optimizer| keeper.join(optimizer));
        }
        self.restore_policies();
    }

    /// Takes over the state of the policies that the optimizer has loaded.
    pub(super) fn restore_policies(&self) {
        if let Some(keeper) = self.policies.keeper() {
            let device = self.device();
            self.session.update().change(|mut optimizer| {
                keeper.restore(&mut optimizer, &device);
                optimizer
            });
        }
    }

    fn device(&self) -> Device {
        let devices = self.form.module.devices();
        devices.into_iter().next().unwrap_or_default()
    }
}

/// `optimizer` and the policies under which it accumulates in its state.
pub(crate) fn in_state(
    optimizer: impl AccumulateInState,
) -> Result<(ModuleOptimizer, Policies), FusedError> {
    if let Some(reason) = optimizer.refusal() {
        return Err(FusedError::NotInState { reason });
    }
    let mut policies = Policies::default();
    policies.set_in_state();
    Ok((InState::new(optimizer).into(), policies))
}
