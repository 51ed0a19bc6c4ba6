//! The ranks of a training: one device each, with an attached module, or a single rank where the model is.

use std::collections::HashSet;
use std::sync::Arc;

use backburn_base::{flush, is_cubecl, is_remote};
use burn::module::{Module, ParamId};
use burn::tensor::Device;
use parking_lot::Mutex;

use crate::config::FusedConfig;
use crate::device::AsyncErrors;
use crate::error::FusedError;
use crate::footprint::host_allocation;
use crate::offload::check_offload_fits;
use crate::parameters::{Statistics, running_statistics, with_own_statistics};
use crate::pass::Session;
use crate::placement::RankContext;
use crate::replica::{Group, Membership};
use crate::shared_optimizer::SharedOptimizer;
use crate::weights::{AttachedModule, Inventory, LocalParams, Role};

/// The updates of running statistics that a stock loop would not have merged yet.
#[derive(Default)]
pub(super) struct Deferred {
    /// The statistics without the last update, if it was merged since the last pass that committed.
    pub(super) unmerged: Option<Statistics>,
    /// The last update of layers that are frozen.
    pub(super) of_frozen: Statistics,
}

/// All ranks. Masters are shared between them.
pub(in crate::fused) struct Ranks<M> {
    /// The attached module of each rank.
    pub(in crate::fused) attached_modules: Vec<AttachedModule<M>>,
    /// The devices that the user gave, if any: with autodiff, and the model's gradient checkpointing strategy.
    pub(in crate::fused) given_devices: Option<Vec<Device>>,
    /// The compute devices.
    pub(in crate::fused) devices: Vec<Device>,
    /// `true` if one of these reports a failed kernel late. Such a device also reads lazily: a transferred tensor may show
    /// later in-place writes.
    pub(in crate::fused) is_asynchronous: bool,
    /// `true` if one of these is remote.
    pub(in crate::fused) remote: bool,
    /// The group of replicas, also of one.
    pub(in crate::fused) group: Option<Arc<Group>>,
    /// The optimizer of all ranks.
    pub(in crate::fused) optimizer: Arc<Mutex<SharedOptimizer>>,
    /// The running statistics. Every rank has its own.
    pub(in crate::fused) statistics: HashSet<ParamId>,
    pub(super) deferred: Mutex<Deferred>,
}

impl<M: Module> Ranks<M> {
    /// Creates one rank, with `model` placed by its context.
    pub(in crate::fused) fn on_one_device(
        model: M,
        session: &Arc<Session>,
        context: Arc<RankContext>,
    ) -> Result<Self, FusedError> {
        let attached = AttachedModule::new(model, session, context, None)?;
        Ok(Self::of(vec![attached], None))
    }

    /// Creates replicas of `model` on `devices`, which share it according to `config`. The optimizer is that of `session`.
    /// `held`: host bytes that the previous training has allocated for the same states; `None` skips the check of the host's
    /// memory.
    pub(in crate::fused) fn on_devices(
        model: M,
        devices: &[Device],
        session: &Session,
        config: &FusedConfig,
        held: Option<usize>,
    ) -> Result<Self, FusedError> {
        // Burn refuses to compute with tensors of two gradient checkpointing strategies.
        let of_model = model.devices().into_iter().next();
        let of_model = of_model.unwrap_or_default().autodiff();
        let devices = devices.iter().cloned();
        let devices = devices.map(|device| device.with_autodiff_context_from(&of_model));
        let devices: Vec<_> = devices.collect();

        let policy = config.placement_policy();
        let first = match &policy.offload {
            None => RankContext::on(&devices[0], policy.compute_dtype),
            Some(_) => RankContext::new(policy.clone(), &devices[0], None)?,
        };
        let inventory = Inventory::of(&model, &first)?;
        if let (Some(_), Some(held)) = (&policy.offload, held) {
            let made = host_allocation(&model, &session.optimizer.lock().fresh(), config);
            check_offload_fits(
                inventory
                    .offloaded_bytes
                    .saturating_add(made.saturating_sub(held)),
            )?;
        }
        // Retained parameters are on all ranks. Their owner only determines the order of their sums.
        let released = inventory.sizes(Role::Released);
        let parameters = released.chain(inventory.sizes(Role::Retained)).collect();
        let group = Arc::new(Group::new(
            devices.clone(),
            config.sharding,
            config.ownership,
            config.max_bytes_in_flight,
            parameters,
        ));
        // A master is complete when its owner has a local parameter, so all are complete before the first pass. The
        // first rank is created last: its running statistics are those of `model`, and move with it.
        let mut attached_modules = Vec::<AttachedModule<M>>::new();
        for rank in (0..group.ranks()).rev() {
            let replica = match rank {
                0 => model.clone(),
                _ => with_own_statistics(model.clone()),
            };
            let group = group.clone();
            let member = Membership { group, rank };
            let context = RankContext::new(policy.clone(), &devices[rank], Some(member))?;
            let context = Arc::new(context);
            let session = Arc::new(session.of_replica(context.membership_of_several().cloned()));
            let attached =
                AttachedModule::new(replica, &session, context, attached_modules.last())?;
            attached_modules.push(attached);
        }
        attached_modules.reverse();
        // The ranks compute on other threads.
        group.devices().iter().for_each(flush);
        Ok(Self::of(attached_modules, Some(devices)))
    }

    fn of(attached_modules: Vec<AttachedModule<M>>, given_devices: Option<Vec<Device>>) -> Self {
        let group = attached_modules[0]
            .context
            .membership
            .as_ref()
            .map(|member| member.group.clone());
        let devices = match &group {
            Some(group) => group.devices().to_vec(),
            // Frozen weights are stored on the host, but computed with on the device.
            None => match &attached_modules[0].context.engine {
                Some(engine) => vec![engine.device.clone()],
                None => attached_modules[0].module.devices(),
            },
        };
        Self {
            statistics: running_statistics(&attached_modules[0].skeleton),
            deferred: Mutex::default(),
            optimizer: attached_modules[0].session.optimizer.clone(),
            attached_modules,
            given_devices,
            is_asynchronous: devices.iter().any(is_cubecl),
            remote: devices.iter().any(is_remote),
            devices,
            group,
        }
    }

    /// Returns the same ranks with another model, shared as `config` says.
    pub(in crate::fused) fn with_model(
        &self,
        model: M,
        config: &FusedConfig,
    ) -> Result<Self, FusedError> {
        let session = Arc::new(self.attached().session.of_other_model());
        match &self.given_devices {
            None => Self::on_one_device(model, &session, self.attached().context.clone()),
            Some(devices) => Self::on_devices(model, devices, &session, config, None),
        }
    }

    /// Returns the attached module of the first rank.
    pub(in crate::fused) fn attached(&self) -> &AttachedModule<M> {
        &self.attached_modules[0]
    }

    /// Returns the parameters of the first rank.
    pub(in crate::fused) fn local_params(&self) -> &Arc<LocalParams> {
        &self.attached().local_params
    }

    /// Returns the compute device of the first rank.
    pub(in crate::fused) fn device(&self) -> Device {
        self.devices.first().cloned().unwrap_or_default()
    }

    /// Returns an error if a device has failed to compute a value.
    pub(super) fn check_async_errors(&self) -> Result<(), FusedError> {
        let mut errors = AsyncErrors::new();
        let local_params = self
            .attached_modules
            .iter()
            .flat_map(|attached| attached.local_params.iter());
        local_params.for_each(|local_param| local_param.add_to_check(&mut errors));
        errors.finish()
    }
}
