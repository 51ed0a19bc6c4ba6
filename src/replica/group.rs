use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::Device;
use parking_lot::{Mutex, MutexGuard};

use super::flow::Flow;
use super::memory_tracker::MemoryTracker;
use super::ownership::{Ownership, Sharding, Size};
use crate::in_flight::InFlightLimit;

/// The ranks that train a model together.
#[derive(Debug)]
pub(crate) struct Group {
    /// One a rank, without autodiff.
    devices: Vec<Device>,
    sharding: Sharding,
    owners: HashMap<ParamId, usize>,
    /// How far the ranks are in a pass.
    pub(crate) flow: Flow,
    wire: Mutex<()>,
    /// What each holds beside what rests there.
    pub(crate) memory_tracker: MemoryTracker,
}

/// One of the ranks of a group.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: usize,
}

impl Group {
    /// Of parameters that are given with their paths and sizes.
    pub(crate) fn new(
        devices: Vec<Device>,
        sharding: Sharding,
        ownership: Ownership,
        max_bytes_in_flight: Option<usize>,
        parameters: Vec<Size>,
    ) -> Self {
        let limit = InFlightLimit::new(max_bytes_in_flight);
        parameters
            .iter()
            .for_each(|size| limit.add_parameter(size.bytes));
        let bytes = parameters.iter().map(|size| size.bytes).sum();
        Self {
            flow: Flow::new(devices.len(), limit.gradients(), bytes),
            owners: ownership.assign(parameters, devices.len()),
            wire: Mutex::default(),
            memory_tracker: MemoryTracker::new(devices.len()),
            devices: devices.into_iter().map(Device::inner).collect(),
            sharding,
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.devices.len()
    }

    /// Whether there are several: one alone has nobody to wait for.
    pub(crate) fn has_several(&self) -> bool {
        self.ranks() > 1
    }

    /// The rank that owns a parameter.
    pub(crate) fn owner(&self, id: ParamId) -> usize {
        self.owners.get(&id).copied().unwrap_or_default()
    }

    /// The devices of the ranks, without autodiff.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub(crate) fn device(&self, rank: usize) -> &Device {
        &self.devices[rank]
    }

    /// Whether ranks hold the parameters of others between steps.
    pub(crate) fn replicates_weights(&self) -> bool {
        self.sharding == Sharding::State
    }

    /// A pass begins, in which these ranks send gradients.
    pub(crate) fn begin(&self, takes_part: &[bool]) {
        self.flow.begin(takes_part);
        self.memory_tracker.begin();
    }

    /// Nothing else travels between its devices until what is returned is dropped.
    pub(crate) fn one_transfer(&self) -> MutexGuard<'_, ()> {
        self.wire.lock()
    }

    /// Gradients of a parameter by rank, as Burn adds them up: the first that there is from the owner on, then the
    /// others in the order of the ranks (`MultiGradientsParams::remove`).
    pub(crate) fn in_order<T>(&self, id: ParamId, mut by_rank: Vec<Option<T>>) -> Vec<T> {
        let owner = self.owner(id);
        let ranks = by_rank.len();
        let from_owner = (0..ranks).map(|next| (owner + next) % ranks);
        let first = from_owner.into_iter().find(|rank| by_rank[*rank].is_some());
        let first = first.and_then(|rank| by_rank[rank].take());
        first
            .into_iter()
            .chain(by_rank.into_iter().flatten())
            .collect()
    }
}

impl Membership {
    /// The device of the rank, without autodiff.
    pub(crate) fn device(&self) -> &Device {
        self.group.device(self.rank)
    }
}
