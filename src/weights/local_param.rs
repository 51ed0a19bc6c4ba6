use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use backburn_base::{AnyTensor, with_dims};
use burn::optim::GradientsParams;
use burn::tensor::Device;
use parking_lot::Mutex;

use super::applied::AppliedGradient;
use super::copy::{ComputeCopy, CopyLifetime};
use super::gradient_state::GradientState;
use super::master_param::MasterParam;
use crate::device::AsyncErrors;
use crate::pass::Session;
use crate::placement::RankContext;
use crate::replica::{HeldBytes, Membership};
use crate::tap::Clock;
use crate::threads::lock::{Level, Leveled, leveled};

/// The part of one rank of a parameter: its gradient state, and its compute copy.
#[derive(Debug)]
pub(crate) struct LocalParam {
    pub(super) master: Arc<MasterParam>,
    pub(super) session: Arc<Session>,
    pub(super) context: Arc<RankContext>,
    pub(super) copy: ComputeCopy,
    /// The clock of the taps.
    pub(super) clock: Arc<Mutex<Clock>>,
    /// `true` if a gradient of the parameter has passed the check for asynchronous errors.
    pub(super) passed_check: AtomicBool,
    /// The rank and its group, if there are several ranks.
    pub(super) membership: Option<Membership>,
    /// `true` if the parameter is an ordinary leaf of the module.
    pub(super) is_retained: bool,
    /// The path of the offloaded frozen parameter that this one adapts.
    pub(super) offloaded_base: Option<Arc<str>>,
    /// The stand-in for an applied gradient, after the first read in a step that runs its own backward pass.
    pub(super) applied: OnceLock<Arc<AppliedGradient>>,
    pub(super) gradient: Leveled<GradientState>,
}

/// The value of a parameter to export.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Current,
    /// The average; without averaging, the current value.
    Averaged,
}

/// The device and type of an exported value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportLocation {
    /// The storage type, at the location of the master.
    Stored,
    /// The storage type, on the device of this rank, or on the host if anything is offloaded.
    Ordinary,
    /// The compute type, on the compute device. A value that is fetched on each read stays at its master.
    Computing,
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
        let clock = session.clocks.lock().of(&device, master.strategy);
        Self {
            clock,
            membership: context.membership_of_several().cloned(),
            copy: ComputeCopy::new(master.clone(), context.clone(), device),
            passed_check: AtomicBool::new(false),
            is_retained,
            offloaded_base,
            applied: OnceLock::new(),
            gradient: leveled(Level::LocalParam, GradientState::Idle),
            master,
            session,
            context,
        }
    }

    pub(super) fn owns(&self) -> bool {
        self.context.owns(self.master.id)
    }

    /// Returns the bytes of weights that the rank holds between two passes.
    pub(super) fn stored_bytes(&self) -> usize {
        let is_here = self.owns() && !self.copy.is_offloaded;
        let stored = if is_here { self.master.bytes() } else { 0 };
        stored + self.copy.cached_bytes()
    }

    /// Tracks the bytes of the value, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self, member: &Membership) -> Option<HeldBytes> {
        let gathers = !self.context.replicates(self.master.id);
        gathers.then(|| {
            member
                .group
                .memory_tracker
                .track(member.rank, self.copy.bytes())
        })
    }

    /// Returns `value` as an autodiff constant.
    pub(super) fn constant_of(&self, value: AnyTensor) -> AnyTensor {
        value.lifted(self.master.strategy)
    }

    /// Returns a value as an ordinary trainable parameter holds it.
    ///
    /// # Panics
    ///
    /// Panics if the value can't be fetched.
    pub(super) fn exported(&self, value: Value, location: ExportLocation) -> AnyTensor {
        let Self { master, copy, .. } = self;
        let transfer = |device, dtype| {
            let transfer = copy.transfer(master.averaged(), device, dtype);
            transfer.map_err(|error| error.to_string())
        };
        let location = match location {
            ExportLocation::Computing if copy.is_on_demand() => ExportLocation::Stored,
            location => location,
        };
        let found = match (value, location) {
            (Value::Current, ExportLocation::Stored) => Ok(master.value()),
            (Value::Current, ExportLocation::Ordinary) => copy.stored_on(self.export_device()),
            (Value::Current, ExportLocation::Computing) => Ok(self.plain(CopyLifetime::Graph)),
            (Value::Averaged, ExportLocation::Stored) => Ok(master.averaged()),
            (Value::Averaged, ExportLocation::Ordinary) => {
                transfer(self.export_device(), master.dtype)
            }
            (Value::Averaged, ExportLocation::Computing) => transfer(&copy.device, copy.dtype),
        };
        let found = found.unwrap_or_else(|reason| panic!("{reason}"));
        self.constant_of(found).0.require_grad().into()
    }

    /// Returns the device of an exported value, without autodiff.
    fn export_device(&self) -> &Device {
        let engine = self.context.engine.as_ref();
        engine.map_or(&self.copy.device, |engine| &engine.host)
    }

    /// Returns the stored value on the compute device, or a placeholder that panics with the reason: the error that
    /// ended the pass is reported first.
    pub(super) fn leaf_or_missing(&self) -> AnyTensor {
        let device = &self.copy.device;
        let value = self.copy.stored_on(device);
        let value = value.unwrap_or_else(|_| self.master.missing_value(device));
        self.constant_of(value).0.require_grad().into()
    }

    /// Adds the value and its copy to a check for asynchronous errors.
    pub(crate) fn add_to_check(&self, errors: &mut AsyncErrors) {
        self.copy.add_to_check(errors);
        if let Some(value) = self.master.find().filter(|_| self.owns()) {
            errors.add(&self.master.path, &*value);
        }
    }

    /// Returns the stand-in for the applied gradient.
    pub(super) fn applied(&self) -> Arc<AppliedGradient> {
        let new = || with_dims!(self.master.shape.num_dims(), D => AppliedGradient::new::<D>(&self.master, self.copy.dtype, &self.copy.device));
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
