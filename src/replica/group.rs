use std::collections::HashMap;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::Device;
use parking_lot::Mutex;

use super::flow::Flow;
use super::memory_tracker::MemoryTracker;
use super::ownership::{Ownership, Sharding, Size};
use crate::threads::InFlightLimit;

/// The ranks that train a model together.
#[derive(Debug)]
pub(crate) struct Group {
    /// One device per rank, without autodiff.
    devices: Vec<Device>,
    sharding: Sharding,
    owners: HashMap<ParamId, usize>,
    /// Flow control between the ranks.
    pub(crate) flow: Flow,
    /// Locked during a transfer between devices of the group.
    pub(crate) transfer: Mutex<()>,
    /// Bytes that each rank holds in addition to its stored weights.
    pub(crate) memory_tracker: MemoryTracker,
}

/// A rank and its group.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: usize,
}

impl Group {
    /// Creates a group for parameters of these sizes.
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
            transfer: Mutex::default(),
            memory_tracker: MemoryTracker::new(devices.len()),
            devices: devices.into_iter().map(Device::inner).collect(),
            sharding,
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.devices.len()
    }

    /// Returns the rank that owns a parameter.
    pub(crate) fn owner(&self, id: ParamId) -> usize {
        self.owners.get(&id).copied().unwrap_or_default()
    }

    /// Returns the devices of the ranks, without autodiff.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub(crate) fn device(&self, rank: usize) -> &Device {
        &self.devices[rank]
    }

    /// Returns `true` if ranks keep the parameters of other ranks between steps.
    pub(crate) fn replicates_weights(&self) -> bool {
        self.sharding == Sharding::State
    }

    /// Begins a pass in which only ranks with a batch send gradients.
    pub(crate) fn begin(&self, has_batch: &[bool]) {
        self.flow.begin(has_batch);
        self.memory_tracker.begin();
    }

    /// Orders the gradients of a parameter as Burn sums them: the first one from the owner on, then the others by rank
    /// (`MultiGradientsParams::remove`).
    pub(crate) fn in_order<T>(&self, id: ParamId, mut by_rank: Vec<Option<T>>) -> Vec<T> {
        let (owner, ranks) = (self.owner(id), by_rank.len());
        let first = (0..ranks).find_map(|next| by_rank[(owner + next) % ranks].take());
        let others = by_rank.into_iter().flatten();
        first.into_iter().chain(others).collect()
    }
}

impl Membership {
    /// Returns the device of the rank, without autodiff.
    pub(crate) fn device(&self) -> &Device {
        self.group.device(self.rank)
    }
}
