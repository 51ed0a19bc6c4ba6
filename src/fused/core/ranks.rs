//! The ranks of a training: a device each, with its form of the model, or one where the model is.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Device;

use crate::config::FusedConfig;
use crate::device::{hand_over, is_cubecl, is_remote};
use crate::error::FusedError;
use crate::footprint::host_allocation;
use crate::offload::check_offload_fits;
use crate::parameters::{running_statistics, with_own_statistics};
use crate::pass::Session;
use crate::placement::RankContext;
use crate::replica::{Group, Membership};
use crate::weights::{AttachedModule, Inventory, LocalParams, Role};

/// All ranks; their homes, and what rests there, are one.
pub(in crate::fused) struct Ranks<M> {
    /// What each has of the model.
    pub(in crate::fused) attached_modules: Vec<AttachedModule<M>>,
    /// Where they compute, if they were given devices: with autodiff, and the gradient checkpointing strategy of the model.
    pub(in crate::fused) named: Option<Vec<Device>>,
    /// Where they compute.
    pub(in crate::fused) devices: Vec<Device>,
    /// Whether what leaves these is read when somebody looks, and shows what was written in place by then.
    pub(in crate::fused) read_late: bool,
    /// Whether one of these is behind a server.
    pub(in crate::fused) remote: bool,
    /// How several share the model.
    pub(in crate::fused) group: Option<Arc<Group>>,
    /// The running statistics, of which every rank has its own.
    pub(in crate::fused) statistics: HashSet<ParamId>,
}

impl<M: Module> Ranks<M> {
    /// One rank, with `model` where its layout says.
    pub(in crate::fused) fn on_one_device(
        model: M,
        session: &Arc<Session>,
        context: Arc<RankContext>,
    ) -> Result<Self, FusedError> {
        let attached = AttachedModule::new(model, session, context, None)?;
        Ok(Self::of(vec![attached], None))
    }

    /// Replicas of `model` on `devices`, which share it as `config` says, and whose optimizer is that of `session`.
    pub(in crate::fused) fn on_devices(
        model: M,
        devices: &[Device],
        session: &Session,
        config: &FusedConfig,
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
            Some(_) => RankContext::new(policy.clone(), &devices[0])?,
        };
        let inventory = Inventory::take(&model, &first)?;
        if policy.offload.is_some() {
            let made = host_allocation(&model, &session.update.lock().fresh(), config);
            check_offload_fits(inventory.offloaded_bytes.saturating_add(made))?;
        }
        // The latter only for the order of their sums: they are on all ranks.
        let released = inventory.sizes(Role::Released);
        let parameters = released.chain(inventory.sizes(Role::Retained)).collect();
        let group = Arc::new(Group::new(
            devices.clone(),
            config.sharding,
            config.ownership,
            config.max_bytes_in_flight,
            parameters,
        ));
        // A home is ready when its owner has a view of it, so all have before the first pass. The first rank comes last:
        // its running statistics are those of `model`, and go where it goes.
        let mut attached_modules = Vec::<AttachedModule<M>>::new();
        for rank in (0..group.ranks()).rev() {
            let replica = match rank {
                0 => model.clone(),
                _ => with_own_statistics(model.clone()),
            };
            let group = group.clone();
            let context = RankContext::new(policy.clone(), &devices[rank])?;
            let context = Arc::new(context.of_rank(Membership { group, rank }));
            let session = Arc::new(session.of_replica(context.membership().cloned()));
            let attached =
                AttachedModule::new(replica, &session, context, attached_modules.last())?;
            attached_modules.push(attached);
        }
        attached_modules.reverse();
        // The ranks compute on threads of their own.
        group.devices().iter().for_each(hand_over);
        Ok(Self::of(attached_modules, Some(devices)))
    }

    fn of(attached_modules: Vec<AttachedModule<M>>, named: Option<Vec<Device>>) -> Self {
        let group = attached_modules[0]
            .context
            .member
            .as_ref()
            .map(|member| member.group.clone());
        let devices = match &group {
            Some(group) => group.devices().to_vec(),
            None => attached_modules[0].module.devices(),
        };
        Self {
            statistics: running_statistics(&attached_modules[0].skeleton),
            attached_modules,
            named,
            read_late: devices.iter().any(is_cubecl),
            remote: devices.iter().any(is_remote),
            devices,
            group,
        }
    }

    /// The same ranks with another model, which several share as `config` says.
    pub(in crate::fused) fn with_model(
        &self,
        model: M,
        config: &FusedConfig,
    ) -> Result<Self, FusedError> {
        match &self.named {
            None => Self::on_one_device(model, self.session(), self.attached().context.clone()),
            Some(devices) => Self::on_devices(model, devices, self.session(), config),
        }
    }

    /// The form of the first.
    pub(in crate::fused) fn attached(&self) -> &AttachedModule<M> {
        &self.attached_modules[0]
    }

    /// The session of the first, whose optimizer is that of all.
    pub(in crate::fused) fn session(&self) -> &Arc<Session> {
        &self.attached_modules[0].session
    }

    /// What the first has of the parameters.
    pub(in crate::fused) fn local_params(&self) -> &Arc<LocalParams> {
        &self.attached().local_params
    }

    /// Where the first computes.
    pub(in crate::fused) fn device(&self) -> Device {
        self.devices.first().cloned().unwrap_or_default()
    }
}
