use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use backburn_base::{AnyTensor, with_dims};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device};
use parking_lot::Mutex;

use super::applied::AppliedGradient;
use super::gradient_state::GradientState;
use super::master_param::MasterParam;
use crate::device::AsyncErrors;
use crate::error::FusedError;
use crate::pass::Session;
use crate::placement::{RankContext, Residency};
use crate::replica::{HeldBytes, Membership};
use crate::tap::Clock;
use crate::threads::lock::{Level, Leveled, leveled};

/// The part of one rank of a parameter: its gradient state, and its compute copy.
#[derive(Debug)]
pub(crate) struct LocalParam {
    pub(super) master: Arc<MasterParam>,
    pub(super) session: Arc<Session>,
    pub(super) context: Arc<RankContext>,
    /// Compute type and device, without autodiff.
    pub(super) dtype: DType,
    pub(super) device: Arc<Device>,
    /// The clock of the taps.
    pub(super) clock: Arc<Mutex<Clock>>,
    /// The residency that the context assigns; see [`residency`](Self::residency) for the current one.
    pub(super) assigned: Residency,
    /// `true` if a copy fetched on demand is cached from now on.
    is_pinned: AtomicBool,
    /// `true` if a gradient of the parameter has passed the check for asynchronous errors.
    pub(super) passed_check: AtomicBool,
    /// `true` if the value is offloaded to the host.
    pub(super) is_offloaded: bool,
    /// The rank and its group, if there are several ranks.
    pub(super) membership: Option<Membership>,
    /// `true` if the parameter is an ordinary leaf of the module.
    pub(super) is_retained: bool,
    /// The path of the offloaded frozen parameter that this one adapts.
    pub(super) offloaded_base: Option<Arc<str>>,
    /// The stand-in for an applied gradient, after the first read in a step that runs its own backward pass.
    pub(super) applied: OnceLock<Arc<AppliedGradient>>,
    pub(super) state: Leveled<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) gradient: GradientState,
    pub(super) copy: Option<Box<ComputeCopy>>,
}

/// The stand-in for an applied gradient among the gradients that a closure returns.
pub(super) enum StandIn {
    /// The backward pass has registered none, and none is there.
    None,
    Unchanged,
    Missing,
    /// Another tensor is in its place.
    Edited,
}

impl State {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.gradient, GradientState::Done { .. })
    }
}

/// The compute copy, if it is not the master's value.
#[derive(Debug)]
pub(super) struct ComputeCopy {
    pub(super) value: AnyTensor,
    /// The version of the master's value.
    pub(super) version: u64,
}

impl LocalParam {
    /// Creates the parameter of a rank that computes on `device`.
    pub(super) fn new(
        master: Arc<MasterParam>,
        session: Arc<Session>,
        context: Arc<RankContext>,
        device: Arc<Device>,
        is_retained: bool,
        offloaded_base: Option<Arc<str>>,
    ) -> Self {
        if context.owns(master.id) {
            let owner = master.session.set(session.clone());
            owner.expect("a parameter has one owner");
        }
        let state = State {
            gradient: GradientState::Idle,
            copy: None,
        };
        let clock = session.clocks.lock().of(&device, master.strategy);
        let local_param = Self {
            clock,
            dtype: context.policy.compute_dtype(master.dtype),
            assigned: context.residency(master.id, &master.storage.location, master.dtype, &device),
            is_offloaded: master.storage.location.is_host,
            membership: context.membership_of_several().cloned(),
            is_pinned: AtomicBool::new(false),
            passed_check: AtomicBool::new(false),
            is_retained,
            offloaded_base,
            applied: OnceLock::new(),
            state: leveled(Level::LocalParam, state),
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

    /// Returns the current residency of the compute copy.
    pub(super) fn residency(&self) -> Residency {
        match self.assigned {
            Residency::OnDemand if self.is_pinned.load(Ordering::Relaxed) => Residency::Cached,
            assigned => assigned,
        }
    }

    /// Returns `true` if the value is fetched whenever it is read.
    pub(super) fn is_on_demand(&self) -> bool {
        self.residency() == Residency::OnDemand
    }

    /// Returns `true` if the value is fetched from the host whenever it is read.
    pub(super) fn is_fetched_from_host(&self) -> bool {
        self.is_offloaded && self.is_on_demand()
    }

    /// Caches the copy on the device from now on, if this rank keeps such weights.
    pub(super) fn pin_copy(&self) {
        let is_pinned = self.context.replicates(self.master.id);
        self.is_pinned.store(is_pinned, Ordering::Relaxed);
    }

    /// Returns the bytes of the compute copy.
    pub(super) fn bytes(&self) -> usize {
        self.master.elements() * self.dtype.size()
    }

    /// Returns the bytes of weights that the rank holds between two passes.
    pub(super) fn stored_bytes(&self) -> usize {
        let is_here = self.owns() && !self.is_offloaded;
        let stored = if is_here { self.master.bytes() } else { 0 };
        let replicates = self.context.replicates(self.master.id);
        let copy = match self.residency() {
            Residency::Cached => self.bytes(),
            // Counted as if each rank had its own device.
            Residency::Aliased | Residency::OnDemand
                if !is_here && !self.is_offloaded && replicates =>
            {
                self.bytes()
            }
            _ => 0,
        };
        stored + copy
    }

    /// Tracks the bytes of the value, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self, member: &Membership) -> Option<HeldBytes> {
        let gathers = !self.context.replicates(self.master.id);
        gathers.then(|| member.group.memory_tracker.track(member.rank, self.bytes()))
    }

    /// Returns `value` as an autodiff constant.
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

    /// Adds the value and its copy to a check for asynchronous errors.
    pub(crate) fn add_to_check(&self, errors: &mut AsyncErrors) {
        if let Some(copy) = &self.state.lock().copy {
            errors.add(&self.master.path, &*copy.value);
        }
        if let Some(value) = self.master.find().filter(|_| self.owns()) {
            errors.add(&self.master.path, &*value);
        }
    }

    /// Returns the stand-in for the applied gradient.
    pub(super) fn applied(&self) -> Arc<AppliedGradient> {
        let new = || with_dims!(self.master.shape.num_dims(), D => AppliedGradient::new::<D>(&self.master, self.dtype, &self.device));
        self.applied.get_or_init(|| Arc::new(new())).clone()
    }

    /// Returns the stand-in if it is registered in the current pass.
    pub(super) fn registered(&self) -> Option<&AppliedGradient> {
        let applied = self.applied.get().map(|applied| &**applied);
        applied.filter(|applied| applied.is_registered())
    }

    /// Returns the state of the stand-in in the `gradients` of the current pass.
    pub(super) fn stand_in(&self, gradients: &GradientsParams) -> StandIn {
        with_dims!(self.master.shape.num_dims(), D => {
            let gradient = gradients.get::<D>(self.master.id);
            match (gradient, self.registered()) {
                (None, None) => StandIn::None,
                (None, Some(_)) => StandIn::Missing,
                (Some(gradient), Some(applied)) if !applied.is_replaced_by(&gradient) => StandIn::Unchanged,
                (Some(_), _) => StandIn::Edited,
            }
        })
    }
}
