//! How a model is trained, from its start or from a step on, and changes of the model.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::tensor::Device;

use super::FusedOptimizer;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::policy::GradientHook;

impl<M: Module> FusedOptimizer<M> {
    /// Trains as `config` says, where the model is.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_set_config`](Self::try_set_config) returns.
    #[must_use]
    pub fn with_config(mut self, config: FusedConfig) -> Self {
        self.set_config(config);
        self
    }

    /// Trains as `config` says, and computes on `device`.
    ///
    /// With [offload](FusedConfig::offload) the model waits in host memory meanwhile. One that does not fit on the device is
    /// created and loaded there, on `Device::flex().autodiff()`: a parameter goes over alone, if at all. Its frozen
    /// parameters, running statistics and constants all go over.
    ///
    /// ```
    /// # #[cfg(feature = "ndarray")] {
    /// use backburn::{FusedConfig, FusedOptimizer, Offload, OffloadConfig};
    /// use burn::{nn::LinearConfig, optim::AdamWConfig, tensor::{Device, Tensor}};
    ///
    /// let device = Device::ndarray(); // a GPU, in earnest
    /// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let config = FusedConfig::new().with_offload(Some(OffloadConfig::new(Offload::Updates)));
    /// let mut fused = FusedOptimizer::new(model, AdamWConfig::new().init())
    ///     .with_config_on(config, &device);
    ///
    /// let x = Tensor::<2>::ones([8, 64], &device.autodiff());
    /// fused.step(1e-3, |model| model.forward(x).mean());
    /// # }
    /// ```
    ///
    /// The result is that of the same optimizer without: to the bit where the device computes the update as the
    /// host does. Gradients that were [accumulated](Self::accumulate) wait on the host, too. [`model`](Self::model)
    /// is then in host memory, [`valid`](Self::valid) computes on the device.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_set_config_on`](Self::try_set_config_on) returns.
    #[must_use]
    pub fn with_config_on(mut self, config: FusedConfig, device: &Device) -> Self {
        self.try_set_config_on(config, device)
            .unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// How it trains.
    pub fn config(&self) -> &FusedConfig {
        &self.core.config
    }

    /// Trains from the next step on as `config` says, where the model computes now, and with what was learned: the optimizer
    /// state, accumulated gradients, the scale of the loss (but where it begins with another one now), the norm that
    /// lagged clipping goes by.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_set_config`](Self::try_set_config) returns.
    pub fn set_config(&mut self, config: FusedConfig) {
        self.try_set_config(config)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`set_config`](Self::set_config).
    ///
    /// # Errors
    ///
    /// If an option makes no sense by itself (a norm or scale that is not positive, an interval of zero), with another
    /// one, or with an optimizer that accumulates in its state. If the scale of the loss begins with another one, or
    /// ends, while there are accumulated gradients, which have the one of before. With offload: if the device
    /// that computes is the host itself, is not there, this build has no backend for one of them, or the device can't
    /// compute in a float type that the model needs. Nothing has changed then.
    pub fn try_set_config(&mut self, config: FusedConfig) -> Result<(), FusedError> {
        self.core.configure(config, None)
    }

    /// The fallible [`with_config_on`](Self::with_config_on), in place.
    ///
    /// # Errors
    ///
    /// As [`try_set_config`](Self::try_set_config) and, if the model moves,
    /// [`try_change_model`](Self::try_change_model).
    pub fn try_set_config_on(
        &mut self,
        config: FusedConfig,
        device: &Device,
    ) -> Result<(), FusedError> {
        self.core.configure(config, Some(device))
    }

    /// Calls `hook` with every finished gradient of the parameters in `group`, after the hooks before
    /// it.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.core.policies.push_hook(group, Arc::new(hook));
        self
    }

    /// Changes the model between two steps: freeze or thaw parameters, load other weights, remove a layer.
    ///
    /// ```
    /// # use backburn::FusedOptimizer;
    /// # use burn::{module::Module, module::ParamGroup, nn::LinearConfig, optim::SgdConfig, tensor::Device};
    /// # let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    /// # let mut fused = FusedOptimizer::new(model, SgdConfig::new().init());
    /// fused.change_model(|model| model.freeze_group(ParamGroup::from_predicate("bias")));
    /// ```
    ///
    /// The optimizer keeps the state of every parameter, frozen ones too; the states of those that are gone from the
    /// model, or have another shape, are dropped. Accumulated gradients are dropped, but for those in the optimizer
    /// state.
    ///
    /// A parameter that comes back under the id of one that was removed starts anew. The other states go through a record
    /// then, as in [`try_load_record`](Self::try_load_record), and those that gradients were accumulated in begin a new
    /// group.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_change_model`](Self::try_change_model) returns.
    pub fn change_model(&mut self, change: impl FnOnce(M) -> M) {
        self.try_change_model(change)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The fallible [`change_model`](Self::change_model).
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new) on the model that `change` returns; nothing has changed then.
    pub fn try_change_model(&mut self, change: impl FnOnce(M) -> M) -> Result<(), FusedError> {
        self.core.change_model(change)
    }

    /// Moves the model to `device` and trains it there, as [`Module::fork`]. The optimizer state
    /// follows at the next step.
    ///
    /// # Panics
    ///
    /// If this build does not cover the backend of `device`.
    pub fn fork(&mut self, device: &Device) {
        self.try_set_config_on(self.config().clone(), device)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// [`fork`](Self::fork) by value.
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        self.fork(device);
        self
    }
}
