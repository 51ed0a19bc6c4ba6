//! How replicas train, from their start or from a step on.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};

use super::FusedReplicas;
use crate::config::FusedConfig;
use crate::error::FusedError;
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
        &self.core.config
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
        self.core.configure(config, None)
    }

    /// Calls `hook` with the gradient of every parameter in `group`, summed over all ranks, as
    /// [`FusedOptimizer::with_hook`](crate::FusedOptimizer::with_hook). It is called on the thread of some rank, with the
    /// value on the device of the owner.
    #[must_use]
    pub fn with_hook(mut self, group: ParamGroup, hook: impl GradientHook) -> Self {
        self.core.policies.push_hook(group, Arc::new(hook));
        self
    }

    /// Changes the model between two steps, as [`FusedOptimizer::change_model`](crate::FusedOptimizer::change_model). With [`Sharding::Full`](crate::Sharding::Full) all weights
    /// are on the first device meanwhile.
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
    /// As [`FusedOptimizer::try_change_model`](crate::FusedOptimizer::try_change_model); nothing has changed then.
    pub fn try_change_model(&mut self, change: impl FnOnce(M) -> M) -> Result<(), FusedError> {
        self.core.change_model(change)
    }
}
