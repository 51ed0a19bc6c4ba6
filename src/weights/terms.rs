use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::ParamId;
use burn::tensor::{DType, Device};

use super::home::Home;
use crate::layout::{Holding, Layout};
use crate::offload::Placement;
use crate::replica::{Hold, Membership};

/// On which terms a rank has a parameter, whatever the rank of its tensor.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(super) id: ParamId,
    pub(super) path: Arc<str>,
    pub(super) layout: Arc<Layout>,
    elements: usize,
    /// In which the value rests.
    dtype_at_home: DType,
    /// In which the model computes with it, and where, without autodiff.
    pub(super) dtype: DType,
    pub(super) device: Arc<Device>,
    /// Whether the value waits on the host.
    pub(super) waits: bool,
    /// Whether it is an ordinary leaf of the module.
    pub(super) is_leaf: bool,
    /// The path of the frozen parameter that this one adapts, if that waits on the host.
    pub(super) waiting_base: Option<Arc<str>>,
    /// What the layout gives it; by now it may [hold](Self::holding) more.
    pub(super) given: Holding,
    /// Which of several ranks it is that of.
    pub(super) rank: Option<Membership>,
    /// If something waits on the host.
    pub(super) placement: Option<Arc<Placement>>,
    /// Whether a copy that would come for a read stays from now on.
    stays: AtomicBool,
}

impl Terms {
    /// Those of a rank which computes with the parameter on `device`.
    pub(super) fn new(home: &Home, layout: Arc<Layout>, device: Arc<Device>) -> Self {
        let terms = Self {
            id: home.id,
            path: home.path.clone(),
            given: layout.holding(home.id, home.site(), home.dtype, &device),
            elements: home.elements(),
            dtype_at_home: home.dtype,
            dtype: layout.compute_dtype(home.dtype),
            device,
            waits: home.site().is_host,
            is_leaf: false,
            rank: layout.among_others().cloned(),
            placement: layout.placement().cloned(),
            waiting_base: None,
            layout,
            stays: AtomicBool::new(false),
        };
        if let Some(placement) = terms.layout.placement().filter(|_| terms.waits) {
            placement.transfers.limit.note(terms.bytes());
        }
        terms
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

    /// Where the value of an ordinary module is, without autodiff.
    pub(super) fn ordinary_device(&self) -> &Device {
        self.placement
            .as_ref()
            .map_or(&self.device, |placement| &placement.host)
    }

    /// A copy of it that would come for a read stays on the device from now on, if this rank keeps such weights.
    pub(super) fn keep_copy(&self) {
        let stays = self.layout.replicates(self.id);
        self.stays.store(stays, Ordering::Relaxed);
    }

    pub(super) fn owns(&self) -> bool {
        self.layout.owns(self.id)
    }

    /// Bytes of the value that the model computes with.
    pub(super) fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }

    /// Bytes of the value at home.
    pub(super) fn bytes_at_home(&self) -> usize {
        self.elements * self.dtype_at_home.size()
    }

    /// Bytes of weights that the rank holds between two passes.
    pub(super) fn bytes_at_rest(&self) -> usize {
        let is_here = self.owns() && !self.waits;
        let at_home = if is_here { self.bytes_at_home() } else { 0 };
        let replicates = self.layout.replicates(self.id);
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
        let hold = || member.group.ledger.hold(member.rank, self.bytes());
        (!self.layout.replicates(self.id)).then(hold)
    }
}
