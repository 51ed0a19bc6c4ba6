//! How a fused optimizer trains, from its start or from a step on.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;

use super::FusedOptimizer;
use super::averages::check_averages;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::layout::Layout;
use crate::offload::OffloadConfig;
use crate::pass::Reads;
use crate::policy::Policies;
use crate::weights::{FusedForm, Inventory, KeptStatistics, forked_in_codes};

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
        &self.config
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
        self.configure(config, None)
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
        self.configure(config, Some(device))
    }

    fn configure(
        &mut self,
        config: FusedConfig,
        device: Option<&Device>,
    ) -> Result<(), FusedError> {
        let policies = self.policies_of(&config)?;
        let devices =
            device.map_or_else(|| self.form.module.devices(), |device| vec![device.clone()]);
        check_averages(&config, devices)?;
        self.lay_out(&config, device)?;
        self.go_on_as(config, policies);
        Ok(())
    }

    /// The policies as `config` has them; refuses what makes no sense, and another scale of the loss while there are sums.
    pub(super) fn policies_of(&self, config: &FusedConfig) -> Result<Policies, FusedError> {
        let policies = config.policies(&self.policies)?;
        // What is in the state of the optimizer was freed from its scale.
        let sums = !self.policies.in_state() && self.has_accumulated();
        if sums && !self.policies.scales_as(&policies) {
            return Err(FusedError::Combination {
                reason: "the accumulated gradients have the scale of the loss under which they came, and can't be used under \
                         another: set it after the step that uses them, or call `drop_accumulated` before",
            });
        }
        Ok(policies)
    }

    /// Goes on with a config, and the policies that are its.
    pub(super) fn go_on_as(&mut self, config: FusedConfig, policies: Policies) {
        let are_kept = self.policies.keeper().is_some();
        let had_averages = self.policies.averages();
        self.policies.go_on_with(policies);
        self.config = config;
        // Each place that they get in the optimizer stays there.
        if !are_kept {
            self.keep_policies();
        }
        if had_averages != self.policies.averages() {
            self.make_place_for_averages();
        }
        self.average();
    }

    /// Brings everything to where `config` lets it rest from now on, and computes on `device`, by default where it does.
    /// Nothing has changed if that can't be.
    pub(super) fn lay_out(
        &mut self,
        config: &FusedConfig,
        device: Option<&Device>,
    ) -> Result<(), FusedError> {
        let before = self.form.layout();
        let here = before.device().cloned().unwrap_or_else(|| self.device());
        let there = match device {
            Some(device) if device.is_autodiff() => device.clone(),
            Some(device) => device.clone().with_autodiff_context_from(&here),
            None => here,
        };
        let (dtype, offload) = (config.compute_dtype, config.offload.as_ref());
        let moves = || {
            let names_device = device.is_some() && offload.is_none();
            let mut devices = self.form.module.devices().into_iter();
            names_device && devices.any(|device| device != there)
        };
        if before.is_of(dtype, offload, &there) && !moves() {
            return Ok(());
        }
        let layout = Layout::new(dtype, offload, &there)?;
        let waited = before.placement().is_some();
        let stays = offload.is_some() || (device.is_none() && !waited);
        let statistics = KeptStatistics::of(&self.form.module);
        let model = self.model();
        let model = match stays {
            true => model,
            false => {
                Inventory::take(&model, &Layout::on(Some(&there), dtype))?;
                forked_in_codes(model, &there)
            }
        };
        let form = FusedForm::new(model, &self.session, Arc::new(layout))?;
        let views = self.form.views().clone();
        self.replace_form(form, self.session.clone());
        statistics.forget(Reads::InTime);
        self.place_states(config);
        self.restore_policies();
        self.form.views().copy_accumulated(&views);
        Ok(())
    }

    /// Brings the states to where they wait by now. They go through a record, so the model was brought there before: what is
    /// refused has not touched them.
    pub(super) fn place_states(&self, config: &FusedConfig) {
        let offload = config.offload.as_ref();
        let from = offload.and_then(OffloadConfig::states_wait_from);
        self.session.update().wait_from(from);
    }
}
