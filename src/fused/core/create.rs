//! Constructors of a training.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use parking_lot::Mutex;

use super::Core;
use super::ranks::Ranks;
use crate::config::FusedConfig;
use crate::error::FusedError;
use crate::footprint::{host_allocation, host_states};
use crate::fused::policies::Policies;
use crate::fused::report::Reports;
use crate::offload::check_offload_fits;
use crate::parameters::merge_pending;
use crate::pass::Session;
use crate::placement::RankContext;
use crate::shared_optimizer::SharedOptimizer;
use crate::weights::{AttachedModule, Inventory, fork_quantized, initialize};

impl<M: Module> Core<M> {
    /// Creates a training of `model` on `device`, by default where it is. `optimizer` is registered for the extra
    /// state of the policies. `held`: host bytes that the previous training has allocated for the same states; `None` skips the
    /// check of the host's memory.
    pub(in crate::fused) fn on_one_device(
        mut model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
        device: Option<&Device>,
        held: Option<usize>,
    ) -> Result<Self, FusedError> {
        let config = &policies.config;
        let devices = model.devices();
        let of_model = devices.first().cloned().unwrap_or_default();
        let compute_device = match device {
            Some(device) if device.is_autodiff() => device.clone(),
            Some(device) => device.clone().with_autodiff_context_from(&of_model),
            None if config.offload.is_some() && devices.len() > 1 => {
                return Err(FusedError::Offload {
                    reason: format!(
                        "the model is on {} devices: pass the one that computes to `FusedOptimizer::with_config_on`",
                        devices.len()
                    ),
                });
            }
            None => of_model,
        };
        let context = RankContext::new(config.placement_policy(), &compute_device, None)?;
        let session = Arc::new(Session::new(SharedOptimizer::new(
            optimizer,
            config.offloaded_state_elements(),
        )));
        let is_offloaded = context.engine.is_some();
        let moves =
            !is_offloaded && device.is_some() && devices.iter().any(|it| *it != compute_device);
        if is_offloaded || moves {
            // Merging reads the parameters.
            initialize(&model)?;
            // Moving a statistic loses its pending update.
            merge_pending(&model);
        }
        if let (true, Some(held)) = (is_offloaded, held) {
            let offloaded_bytes = Inventory::of(&model, &context)?.offloaded_bytes;
            let made = host_allocation(&model, &session.optimizer.lock().fresh(), config);
            check_offload_fits(offloaded_bytes.saturating_add(made.saturating_sub(held)))?;
        }
        if moves {
            // Refuses a model before it is moved.
            Inventory::of(
                &model,
                &RankContext::on(&compute_device, config.compute_dtype),
            )?;
            model = fork_quantized(model, &compute_device);
        }
        let ranks = Ranks::on_one_device(model, &session, Arc::new(context))?;
        Ok(Self::of(ranks, policies))
    }

    /// Creates a training of replicas of `model`, one on each device. `optimizer` is registered for the extra state of
    /// the policies. `held`: host bytes that the previous training has allocated for the same states; `None` skips the check of the
    /// host's memory.
    pub(in crate::fused) fn on_devices(
        model: M,
        optimizer: ModuleOptimizer,
        policies: Policies,
        devices: &[Device],
        held: Option<usize>,
    ) -> Result<Self, FusedError> {
        let config = &policies.config;
        // Merging reads the parameters.
        initialize(&model)?;
        merge_pending(&model);
        let session = Session::new(SharedOptimizer::new(
            optimizer,
            config.offloaded_state_elements(),
        ));
        let ranks = Ranks::on_devices(model, devices, &session, config, held)?;
        Ok(Self::of(ranks, policies))
    }

    fn of(ranks: Ranks<M>, policies: Policies) -> Self {
        let mut core = Self {
            ranks,
            policies,
            reports: Reports::default(),
            end_panic: Mutex::default(),
        };
        core.restore_extra_state();
        core
    }

    /// Creates the training again with another config, on `device` or on its current device.
    pub(in crate::fused) fn with_config(
        self,
        config: FusedConfig,
        device: Option<&Device>,
    ) -> Result<Self, FusedError> {
        let ranks = &self.ranks;
        if ranks.given_devices.is_none() {
            config.check_on_one_device()?;
        }
        let device = device.or(ranks.attached().context.device()).cloned();
        let given_devices = ranks.given_devices.clone();
        // Values move from owner to owner, so that no device has to hold all weights.
        let model = ranks.export(AttachedModule::export_in_place);
        let optimizer = self.optimizer();
        let (fresh, removed) = self.ranks.optimizer.lock().fresh_and_removed();
        let before = &self.policies.config;
        let is_same = (&before.offload, &before.averaging) == (&config.offload, &config.averaging);
        // The first update makes the states.
        let has_states = self.ranks.local_params().were_updated();
        let states_alone = before.clone().with_averaging(None).with_clipping(None);
        let states = || host_states(&model, &fresh, &states_alone);
        let held = (!is_same).then(|| if has_states { states() } else { 0 });
        let (policies, optimizer) = self.policies.with_config(config, optimizer)?;
        let accumulated_in_state = self.ranks.local_params().accumulated_in_state();
        let removed = (policies.join(fresh), removed);
        // Afterwards the model is the only owner of its values.
        drop(self.ranks);
        let core = match given_devices {
            None => {
                let device = device.as_ref();
                Self::on_one_device(model, optimizer, policies, device, held)
            }
            Some(devices) => Self::on_devices(model, optimizer, policies, &devices, held),
        }?;
        let mut optimizer = core.ranks.optimizer.lock();
        optimizer.restore_removed(removed);
        drop(optimizer);
        let local_params = core.ranks.local_params();
        local_params.set_accumulated_in_state(&accumulated_in_state);
        Ok(core)
    }
}
