use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device};

use super::gradient_state::GradientState;
use super::master_param::MasterParam;
use crate::device::AsyncErrors;
use crate::error::FusedError;
use crate::lock::{Level, Leveled};
use crate::parameters::AnyTensor;
use crate::pass::Session;
use crate::placement::{RankContext, Residency};
use crate::replica::{HeldBytes, Membership};

/// What one rank has of a parameter.
#[derive(Debug)]
pub(crate) struct LocalParam {
    pub(super) master: Arc<MasterParam>,
    pub(super) session: Arc<Session>,
    pub(super) context: Arc<RankContext>,
    /// In which the model computes with it, and where, without autodiff.
    pub(super) dtype: DType,
    pub(super) device: Arc<Device>,
    /// What the layout gives; by now the rank may [hold](Self::residency) more.
    pub(super) assigned: Residency,
    /// Whether a copy that would come for a read stays from now on.
    is_pinned: AtomicBool,
    /// Whether the value waits on the host.
    pub(super) is_offloaded: bool,
    /// Which of several ranks it is that of.
    pub(super) among: Option<Membership>,
    /// Whether it is an ordinary leaf of the module.
    pub(super) is_leaf: bool,
    /// The path of the frozen parameter that this one adapts, if that waits on the host.
    pub(super) offloaded_base: Option<Arc<str>>,
    pub(super) state: Leveled<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: GradientState,
    pub(super) copy: Option<Box<ComputeCopy>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

impl State {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, GradientState::Done { .. })
    }
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
pub(super) struct ComputeCopy {
    pub(super) value: AnyTensor,
    /// Of the value at home.
    pub(super) version: usize,
}

impl ComputeCopy {
    pub(super) fn of(value: AnyTensor, version: usize) -> Box<Self> {
        Box::new(Self { value, version })
    }
}

impl LocalParam {
    /// That of a rank with this layout, which computes with the parameter on `device`.
    pub(super) fn new(
        master: Arc<MasterParam>,
        session: Arc<Session>,
        context: Arc<RankContext>,
        device: Arc<Device>,
    ) -> Self {
        if context.owns(master.id) {
            let owner = master.session.set(session.clone());
            owner.expect("a parameter has one owner");
        }
        let state = State {
            stage: GradientState::Idle,
            copy: None,
            proven: false,
        };
        let local_param = Self {
            dtype: context.compute_dtype(master.dtype),
            assigned: context.residency(master.id, &master.storage.location, master.dtype, &device),
            is_offloaded: master.storage.location.is_host,
            among: context.membership().cloned(),
            is_pinned: AtomicBool::new(false),
            is_leaf: false,
            offloaded_base: None,
            state: Leveled::new(Level::LocalParam, state),
            master,
            session,
            context,
            device,
        };
        if let Some(engine) = local_param
            .context
            .engine
            .as_ref()
            .filter(|_| local_param.is_offloaded)
        {
            engine.transfers.limit.add_parameter(local_param.bytes());
        }
        local_param
    }

    pub(super) fn owns(&self) -> bool {
        self.context.owns(self.master.id)
    }

    /// What this rank has of the parameter, by now.
    pub(super) fn residency(&self) -> Residency {
        match self.assigned {
            Residency::OnDemand if self.is_pinned.load(Ordering::Relaxed) => Residency::Cached,
            assigned => assigned,
        }
    }

    /// Whether the value comes over whenever it is read.
    pub(super) fn is_fetched_on_read(&self) -> bool {
        self.residency() == Residency::OnDemand
    }

    /// The same from the host.
    pub(super) fn is_fetched_from_host(&self) -> bool {
        self.is_offloaded && self.is_fetched_on_read()
    }

    /// A copy of it that would come for a read stays on the device from now on, if this rank keeps such weights.
    pub(super) fn pin_copy(&self) {
        let is_pinned = self.context.replicates(self.master.id);
        self.is_pinned.store(is_pinned, Ordering::Relaxed);
    }

    /// Bytes of the value that the model computes with.
    pub(super) fn bytes(&self) -> usize {
        self.master.elements() * self.dtype.size()
    }

    /// Bytes of weights that the rank holds between two passes.
    pub(super) fn stored_bytes(&self) -> usize {
        let is_here = self.owns() && !self.is_offloaded;
        let export_in_place = if is_here { self.master.bytes() } else { 0 };
        let replicates = self.context.replicates(self.master.id);
        let copy = match self.residency() {
            Residency::Cached => self.bytes(),
            // Counted by rank, as if every rank had a device.
            Residency::Aliased | Residency::OnDemand
                if !is_here && !self.is_offloaded && replicates =>
            {
                self.bytes()
            }
            _ => 0,
        };
        export_in_place + copy
    }

    /// Counts the value as held by this one of several ranks, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self, member: &Membership) -> Option<HeldBytes> {
        let gathers = !self.context.replicates(self.master.id);
        gathers.then(|| member.group.memory_tracker.track(member.rank, self.bytes()))
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: AnyTensor) -> AnyTensor {
        value.lifted(self.master.strategy)
    }

    pub(super) fn transfer(
        &self,
        value: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        self.context
            .transfer(&self.master.path, value, device, dtype)
    }

    /// Asks whether the device has computed the value.
    pub(crate) fn add_to_check(&self, errors: &mut AsyncErrors) {
        if let Some(copy) = &self.state.lock().copy {
            errors.add(&self.master.path, &*copy.value);
        }
        if let Some(value) = self.master.find().filter(|_| self.owns()) {
            errors.add(&self.master.path, &*value);
        }
    }
}
