//! What a fused optimizer does with gradients besides stepping with them.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::error::FusedError;
use crate::optim::{AccumulateInState, InState, Ruled};
use crate::policy::{GradientHook, Policies};

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
    pub fn accumulating_in_state(model: M, optimizer: Ruled<impl AccumulateInState>) -> Self {
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
        optimizer: Ruled<impl AccumulateInState>,
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

    /// Calls `hook` with every finished gradient of the parameters in `group`, after the hooks before
    /// it.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.policies.push_hook(group, Arc::new(hook));
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
        self.restore_averages();
    }

    /// Where the model computes, or the first part of it.
    pub(super) fn device(&self) -> Device {
        let devices = self.form.module.devices();
        devices.into_iter().next().unwrap_or_default()
    }
}

/// `optimizer` and the policies under which it accumulates in its state.
pub(crate) fn in_state(
    optimizer: Ruled<impl AccumulateInState>,
) -> Result<(ModuleOptimizer, Policies), FusedError> {
    if let Some(reason) = optimizer.accumulation_refusal() {
        return Err(FusedError::NotInState { reason });
    }
    let mut policies = Policies::default();
    policies.set_in_state();
    Ok((InState::new(optimizer).into(), policies))
}
