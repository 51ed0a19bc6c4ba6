//! How replicas train, from their start or from a step on.

use burn::module::{Module, ParamGroup};

use super::FusedReplicas;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::averages::check_averages;
use crate::policy::GradientHook;

impl<M: Module + 'static> FusedReplicas<M> {
    /// Trains as `config` says, as [`FusedOptimizer::with_config`](crate::FusedOptimizer::with_config).
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_set_config`](Self::try_set_config) returns.
    #[must_use]
    pub fn with_config(mut self, config: FusedConfig) -> Self {
        self.set_config(config);
        self
    }

    /// How they train.
    pub fn config(&self) -> &FusedConfig {
        self.first.config()
    }

    /// Trains from the next step on as `config` says, as
    /// [`FusedOptimizer::set_config`](crate::FusedOptimizer::set_config). Accumulated gradients are dropped if the ranks
    /// share the model otherwise now.
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
    /// As [`FusedOptimizer::try_set_config`](crate::FusedOptimizer::try_set_config).
    pub fn try_set_config(&mut self, config: FusedConfig) -> Result<(), FusedError> {
        let policies = self.first.policies_of(&config)?;
        check_averages(&config, self.setup.devices.clone())?;
        if !config.shares_as(&self.first.config) {
            // From owner to owner, so that no device has to hold all weights.
            let model = self.first.form.at_home();
            let sums = !policies.in_state() && self.first.has_accumulated();
            self.share(model, &config)?;
            self.first.place_states(&config);
            self.first.restore_policies();
            if sums {
                log::warn!(
                    "the accumulated gradients are dropped: the ranks share the model otherwise from now on"
                );
            }
        }
        self.first.go_on_as(config, policies);
        Ok(())
    }

    /// Calls `hook` with the gradient of every parameter in `group`, summed over all ranks, as
    /// [`FusedOptimizer::with_hook`](crate::FusedOptimizer::with_hook). It is called on the thread of some rank, with the
    /// value on the device of the owner.
    #[must_use]
    pub fn with_hook(self, group: ParamGroup, hook: impl GradientHook) -> Self {
        let first = self.first.with_hook(group, hook);
        Self { first, ..self }
    }
}
