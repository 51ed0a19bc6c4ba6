//! How replicas are made.

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;

use super::FusedReplicas;
use super::crew::Crew;
use super::setup::Setup;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::fused::FusedOptimizer;
use crate::fused::averages::check_averages;
use crate::fused::policies::in_state;
use crate::optim::{AccumulateInState, Ruled};
use crate::pass::Session;
use crate::policy::{Policies, Update};

impl<M: Module + 'static> FusedReplicas<M> {
    /// Fuses `optimizer` into the backward passes of replicas of `model`, one on each of `devices`, which may
    /// repeat.
    ///
    /// The model may be anywhere: every parameter goes to its owner, and to the other ranks when they compute with it.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_new`](Self::try_new) returns.
    pub fn new(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> Self {
        Self::try_new(model, optimizer, devices).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// If there are no devices; as [`FusedOptimizer::try_new`] for each of them.
    pub fn try_new(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, FusedError> {
        Self::try_new_with_config(model, optimizer, devices, FusedConfig::default())
    }

    /// The same that train as `config` says from the start. What waits on the host goes there at once: a model that does not fit
    /// on the devices is created on the host, and a parameter goes over alone, if at all.
    ///
    /// # Panics
    ///
    /// With the message of the error that [`try_new_with_config`](Self::try_new_with_config) returns.
    pub fn new_with_config(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
        config: FusedConfig,
    ) -> Self {
        Self::try_new_with_config(model, optimizer, devices, config)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`new_with_config`](Self::new_with_config).
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new) and [`try_set_config`](Self::try_set_config).
    pub fn try_new_with_config(
        model: M,
        optimizer: ModuleOptimizer,
        devices: impl IntoIterator<Item = Device>,
        config: FusedConfig,
    ) -> Result<Self, FusedError> {
        let devices = devices.into_iter().collect();
        Self::with_policies(model, optimizer, Policies::default(), devices, config)
    }

    /// Replicas for which [`accumulate`](Self::accumulate) puts the gradients of a micro-batch straight into the state
    /// of `optimizer`, as [`FusedOptimizer::accumulating_in_state`].
    ///
    /// # Panics
    ///
    /// With the message of the error that
    /// [`try_accumulating_in_state`](Self::try_accumulating_in_state) returns.
    pub fn accumulating_in_state(
        model: M,
        optimizer: Ruled<impl AccumulateInState>,
        devices: impl IntoIterator<Item = Device>,
    ) -> Self {
        Self::try_accumulating_in_state(model, optimizer, devices)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fallible [`accumulating_in_state`](Self::accumulating_in_state).
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new) and [`FusedOptimizer::try_accumulating_in_state`].
    pub fn try_accumulating_in_state(
        model: M,
        optimizer: Ruled<impl AccumulateInState>,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, FusedError> {
        let (optimizer, policies) = in_state(optimizer)?;
        let devices = devices.into_iter().collect();
        Self::with_policies(model, optimizer, policies, devices, FusedConfig::default())
    }

    /// Replicas with policies that were put together elsewhere, and their state in the optimizer.
    pub(crate) fn with_policies(
        model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
        devices: Vec<Device>,
        config: FusedConfig,
    ) -> Result<Self, FusedError> {
        let configured = config.policies(&policies)?;
        check_averages(&config, devices.clone())?;
        let setup = Setup::new(devices)?.of_model(&model);
        let session = Session::new(Update::new(optimizer));
        let (mut ranks, group) = setup.ranks(model, &session, &config)?;
        let (form, session) = ranks.remove(0).into_parts();
        let mut first = FusedOptimizer::of(form, session);
        first.policies = policies;
        first.place_states(&config);
        first.restore_policies();
        first.go_on_as(config, configured);
        let crew = Crew::new(ranks, group)?;
        let fused = Self { first, crew, setup };
        log::info!("{fused}");
        Ok(fused)
    }
}
