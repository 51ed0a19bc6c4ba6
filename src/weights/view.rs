use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device};

use super::home::Home;
use super::stage::GradientState;
use crate::device::Written;
use crate::error::FusedError;
use crate::layout::{Holding, Layout};
use crate::lock::{Level, Leveled};
use crate::parameters::AnyTensor;
use crate::pass::Session;
use crate::replica::{Hold, Membership};

/// What one rank has of a parameter.
#[derive(Debug)]
pub(crate) struct View {
    pub(super) home: Arc<Home>,
    pub(super) session: Arc<Session>,
    pub(super) layout: Arc<Layout>,
    /// In which the model computes with it, and where, without autodiff.
    pub(super) dtype: DType,
    pub(super) device: Arc<Device>,
    /// What the layout gives; by now the rank may [hold](Self::holding) more.
    pub(super) given: Holding,
    /// Whether a copy that would come for a read stays from now on.
    stays: AtomicBool,
    /// Whether the value waits on the host.
    pub(super) waits: bool,
    /// Which of several ranks it is that of.
    pub(super) among: Option<Membership>,
    /// Whether it is an ordinary leaf of the module.
    pub(super) is_leaf: bool,
    /// The path of the frozen parameter that this one adapts, if that waits on the host.
    pub(super) waiting_base: Option<Arc<str>>,
    pub(super) state: Leveled<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: GradientState,
    pub(super) copy: Option<Box<HomeCopy>>,
    /// Whether the device has computed a gradient for it.
    pub(super) proven: bool,
}

impl State {
    pub(super) fn has_answered(&self) -> bool {
        matches!(self.stage, GradientState::Done { .. })
    }
}

/// What the model computes with, if that is not the value at home.
#[derive(Debug)]
pub(super) struct HomeCopy {
    pub(super) value: AnyTensor,
    /// Of the value at home.
    pub(super) version: usize,
}

impl HomeCopy {
    pub(super) fn of(value: AnyTensor, version: usize) -> Box<Self> {
        Box::new(Self { value, version })
    }
}

impl View {
    /// That of a rank with this layout, which computes with the parameter on `device`.
    pub(super) fn new(
        home: Arc<Home>,
        session: Arc<Session>,
        layout: Arc<Layout>,
        device: Arc<Device>,
    ) -> Self {
        if layout.owns(home.id) {
            let owner = home.session.set(session.clone());
            owner.expect("a parameter has one owner");
        }
        let state = State {
            stage: GradientState::Idle,
            copy: None,
            proven: false,
        };
        let view = Self {
            dtype: layout.compute_dtype(home.dtype),
            given: layout.holding(home.id, &home.ground.site, home.dtype, &device),
            waits: home.ground.site.is_host,
            among: layout.among_others().cloned(),
            stays: AtomicBool::new(false),
            is_leaf: false,
            waiting_base: None,
            state: Leveled::new(Level::View, state),
            home,
            session,
            layout,
            device,
        };
        if let Some(placement) = view.layout.placement.as_ref().filter(|_| view.waits) {
            placement.transfers.limit.add_parameter(view.bytes());
        }
        view
    }

    pub(super) fn owns(&self) -> bool {
        self.layout.owns(self.home.id)
    }

    /// What this rank has of the parameter, by now.
    pub(super) fn holding(&self) -> Holding {
        match self.given {
            Holding::ForRead if self.stays.load(Ordering::Relaxed) => Holding::Kept,
            given => given,
        }
    }

    /// Whether the value comes over whenever it is read.
    pub(super) fn comes_over(&self) -> bool {
        self.holding() == Holding::ForRead
    }

    /// The same from the host.
    pub(super) fn comes_from_host(&self) -> bool {
        self.waits && self.comes_over()
    }

    /// A copy of it that would come for a read stays on the device from now on, if this rank keeps such weights.
    pub(super) fn keep_copy(&self) {
        let stays = self.layout.replicates(self.home.id);
        self.stays.store(stays, Ordering::Relaxed);
    }

    /// Bytes of the value that the model computes with.
    pub(super) fn bytes(&self) -> usize {
        self.home.elements() * self.dtype.size()
    }

    /// Bytes of weights that the rank holds between two passes.
    pub(super) fn bytes_at_rest(&self) -> usize {
        let is_here = self.owns() && !self.waits;
        let at_home = if is_here { self.home.bytes() } else { 0 };
        let replicates = self.layout.replicates(self.home.id);
        let copy = match self.holding() {
            Holding::Kept => self.bytes(),
            // Counted by rank, as if every rank had a device.
            Holding::Shared | Holding::ForRead if !is_here && !self.waits && replicates => {
                self.bytes()
            }
            _ => 0,
        };
        at_home + copy
    }

    /// Counts the value as held by this one of several ranks, if it is gathered from its owner for every read.
    pub(super) fn count_gathered(&self, member: &Membership) -> Option<Hold> {
        let gathers = !self.layout.replicates(self.home.id);
        gathers.then(|| member.group.ledger.hold(member.rank, self.bytes()))
    }

    /// A value of it as an autodiff constant.
    pub(super) fn constant_of(&self, value: AnyTensor) -> AnyTensor {
        value.lifted(self.home.strategy)
    }

    pub(super) fn carried(
        &self,
        value: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        self.layout.carried(&self.home.path, value, device, dtype)
    }

    /// Asks whether the device has computed the value.
    pub(crate) fn ask_written(&self, written: &mut Written) {
        if let Some(copy) = &self.state.lock().copy {
            written.ask(&self.home.path, &*copy.value);
        }
        if let Some(value) = self.home.find().filter(|_| self.owns()) {
            written.ask(&self.home.path, &*value);
        }
    }
}
