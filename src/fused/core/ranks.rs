//! The ranks of a training: a device each, with its form of the model, or one where the model is.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::Device;

use crate::config::FusedConfig;
use crate::device::{hand_over, is_cubecl, is_remote};
use crate::error::FusedError;
use crate::footprint::host_allocation;
use crate::layout::Layout;
use crate::offload::check_offload_fits;
use crate::parameters::{running_statistics, with_own_statistics};
use crate::pass::Session;
use crate::replica::{Group, Membership};
use crate::weights::{FusedForm, Inventory, Role, Views};

/// All ranks; their homes, and what rests there, are one.
pub(in crate::fused) struct Ranks<M> {
    /// What each has of the model.
    pub(in crate::fused) forms: Vec<FusedForm<M>>,
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
    pub(in crate::fused) fn alone(
        model: M,
        session: &Arc<Session>,
        layout: Arc<Layout>,
    ) -> Result<Self, FusedError> {
        let form = FusedForm::new(model, session, layout, None)?;
        Ok(Self::of(vec![form], None))
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

        let request = config.layout();
        let first = match &request.offload {
            None => Layout::on(&devices[0], request.compute_dtype),
            Some(_) => Layout::new(request.clone(), &devices[0])?,
        };
        let inventory = Inventory::take(&model, &first)?;
        if request.offload.is_some() {
            let made = host_allocation(&model, &session.update.lock().anew(), config);
            check_offload_fits(inventory.leaving.saturating_add(made))?;
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
        let mut forms = Vec::<FusedForm<M>>::new();
        for rank in (0..group.ranks()).rev() {
            let replica = match rank {
                0 => model.clone(),
                _ => with_own_statistics(model.clone()),
            };
            let group = group.clone();
            let layout = Layout::new(request.clone(), &devices[rank])?;
            let layout = Arc::new(layout.of_rank(Membership { group, rank }));
            let session = Arc::new(session.of_replica(layout.among_others().cloned()));
            let form = FusedForm::new(replica, &session, layout, forms.last())?;
            forms.push(form);
        }
        forms.reverse();
        // The ranks compute on threads of their own.
        group.devices().iter().for_each(hand_over);
        Ok(Self::of(forms, Some(devices)))
    }

    fn of(forms: Vec<FusedForm<M>>, named: Option<Vec<Device>>) -> Self {
        let group = forms[0]
            .layout
            .member
            .as_ref()
            .map(|member| member.group.clone());
        let devices = match &group {
            Some(group) => group.devices().to_vec(),
            None => forms[0].module.devices(),
        };
        Self {
            statistics: running_statistics(&forms[0].hollow),
            forms,
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
            None => Self::alone(model, self.session(), self.form().layout.clone()),
            Some(devices) => Self::on_devices(model, devices, self.session(), config),
        }
    }

    /// The form of the first.
    pub(in crate::fused) fn form(&self) -> &FusedForm<M> {
        &self.forms[0]
    }

    /// The session of the first, whose optimizer is that of all.
    pub(in crate::fused) fn session(&self) -> &Arc<Session> {
        &self.forms[0].session
    }

    /// What the first has of the parameters.
    pub(in crate::fused) fn views(&self) -> &Arc<Views> {
        &self.form().views
    }

    /// Where the first computes.
    pub(in crate::fused) fn device(&self) -> Device {
        self.devices.first().cloned().unwrap_or_default()
    }
}
