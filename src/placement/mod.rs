//! Where the parameters of one rank are stored, and how the rank computes with them.
//!
//! | training | location of the master | storage type | residency | compute type |
//! |---|---|---|---|---|
//! | one device | that device | the model's | aliased | same |
//! | bf16 computed in f32 | that device | bf16, low bits in the state | on demand | f32 |
//! | master weights | that device | f32 | on demand | bf16, f16 |
//! | offloaded states | that device; the states on the host as records | the model's | aliased, or on demand | any |
//! | offloaded updates | host | the model's | cached | any |
//! | offloaded weights | host | the model's | on demand, in a block | any |
//! | `Sharding::State` (ZeRO 1 and 2) | the owner's device | the model's | cached | any |
//! | `Sharding::Full` (ZeRO 3) | the owner's device | the model's | gathered | any |
//! | `State` or `Full`, with offload (ZeRO-Infinity) | host, or the owner's device | the model's | as above | any |
//! | offloaded frozen weights | host | the model's | on demand, in a block | same |

mod policy;

use std::sync::Arc;

use backburn_base::{AnyTensor, flush, transferred};
use burn::module::ParamId;
use burn::tensor::{DType, Device, FloatDType};

use crate::error::FusedError;
use crate::offload::{OffloadEngine, TransferWorkers};
use crate::replica::Membership;
pub(crate) use policy::{PlacementPolicy, StorageTier};

/// The context of one rank: its placement policy, device, group and worker threads.
#[derive(Debug, Default)]
pub(crate) struct RankContext {
    /// The device to which the model will be moved. Only [`on`](Self::on) sets it.
    target_device: Option<Device>,
    pub(crate) policy: PlacementPolicy,
    /// The offload engine, if anything is offloaded.
    pub(crate) engine: Option<Arc<OffloadEngine>>,
    /// The rank and its group in a training of replicas, also in a group of one.
    pub(crate) membership: Option<Membership>,
    /// Background workers for transfers, if anything is transferred: the engine's, if there is one.
    pub(crate) transfers: Option<Arc<TransferWorkers>>,
}

/// The location where a value is stored and stepped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParamLocation {
    /// The device, without autodiff.
    pub(crate) device: Device,
    /// `true` if the device is the host of an offload.
    pub(crate) is_host: bool,
}

/// The lifetime of the compute copy of a parameter on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// The master's value itself.
    Aliased,
    /// A copy that is kept between passes.
    Cached,
    /// A copy for one read, or for the reads of one run of a block.
    OnDemand,
    /// A copy from the device of another rank, for one read.
    Gathered,
}

impl RankContext {
    /// Creates the context of one rank. Only the offload engine, if anything is offloaded, needs the `device`.
    pub(crate) fn new(
        policy: PlacementPolicy,
        device: &Device,
        membership: Option<Membership>,
    ) -> Result<Self, FusedError> {
        let max = policy.max_bytes_in_flight;
        let offload = policy.offload.clone();
        let engine = offload.map(|offload| OffloadEngine::new(offload, max, device));
        let engine = engine.transpose()?.map(Arc::new);
        let transfers = match &engine {
            Some(engine) => Some(engine.transfers.clone()),
            None if policy.offload_inputs => Some(Arc::new(TransferWorkers::new(max, None)?)),
            None => None,
        };
        Ok(Self {
            engine,
            transfers,
            policy,
            membership,
            ..Self::default()
        })
    }

    /// Creates the context of a model that will be moved to `device`, to check it before the move.
    pub(crate) fn on(device: &Device, compute_dtype: Option<FloatDType>) -> Self {
        Self {
            target_device: Some(device.clone()),
            policy: PlacementPolicy {
                compute_dtype,
                ..PlacementPolicy::default()
            },
            ..Self::default()
        }
    }

    /// Returns the rank and its group, if there are other ranks: a single rank never waits.
    pub(crate) fn membership_of_several(&self) -> Option<&Membership> {
        self.membership
            .as_ref()
            .filter(|member| member.group.ranks() > 1)
    }

    /// Returns the rank that owns a parameter.
    pub(crate) fn owner(&self, id: ParamId) -> usize {
        self.membership
            .as_ref()
            .map_or(0, |member| member.group.owner(id))
    }

    pub(crate) fn owns(&self, id: ParamId) -> bool {
        let rank = self.membership.as_ref().map_or(0, |member| member.rank);
        self.owner(id) == rank
    }

    /// Returns `true` if this rank may keep a parameter between two passes.
    pub(crate) fn replicates(&self, id: ParamId) -> bool {
        let group = self.membership.as_ref().map(|member| &member.group);
        self.owns(id) || group.is_none_or(|group| group.replicates_weights())
    }

    /// Returns the compute device, with or without autodiff; `None` for the model's device.
    pub(crate) fn device(&self) -> Option<&Device> {
        let engine = self.engine.as_ref().map(|engine| &engine.device);
        let of_rank = self.membership.as_ref().map(Membership::device);
        engine.or(of_rank).or(self.target_device.as_ref())
    }

    /// Returns the location of a trained parameter on `device`.
    pub(crate) fn location(
        &self,
        id: ParamId,
        elements: usize,
        dtype: DType,
        device: &Device,
    ) -> ParamLocation {
        let is_offloaded = self.policy.tier(true, elements, dtype) == StorageTier::Host;
        match self.engine.as_ref().filter(|_| is_offloaded) {
            Some(engine) => ParamLocation {
                device: engine.host.clone(),
                is_host: true,
            },
            None => self.leaf_location(id, device),
        }
    }

    /// Returns the location of a parameter that stays an ordinary leaf. It is never offloaded.
    pub(crate) fn leaf_location(&self, id: ParamId, device: &Device) -> ParamLocation {
        let device = match &self.membership {
            Some(member) => member.group.device(member.group.owner(id)).clone(),
            None => self.compute_device(device),
        };
        ParamLocation {
            device,
            is_host: false,
        }
    }

    /// Returns the device on which this rank computes with a parameter on `device`, without autodiff.
    pub(crate) fn compute_device(&self, device: &Device) -> Device {
        self.device().unwrap_or(device).clone().inner()
    }

    /// Returns the residency of a parameter on this rank, which is stored at `location` in `dtype` and computed with
    /// on `device`.
    pub(crate) fn residency(
        &self,
        id: ParamId,
        location: &ParamLocation,
        dtype: DType,
        device: &Device,
    ) -> Residency {
        let replicates = self.replicates(id);
        if location.is_host {
            let engine = self.engine.as_ref();
            let keeps = engine.is_some_and(|it| it.config.offloaded_blocks().is_none());
            return match keeps && replicates {
                true => Residency::Cached,
                false => Residency::OnDemand,
            };
        }
        match (location.device == *device, replicates) {
            (true, _) if self.policy.compute_dtype(dtype) == dtype => Residency::Aliased,
            // A cast to another type needs no transfer.
            (true, _) => Residency::OnDemand,
            (false, true) => Residency::Cached,
            (false, false) => Residency::Gathered,
        }
    }

    /// Returns `true` if copies are fetched and dropped with the runs of blocks: those of offloaded weights, and casts.
    pub(crate) fn has_block_copies(&self) -> bool {
        self.policy.compute_dtype.is_some() || self.engine_of_blocks().is_some()
    }

    /// Returns the engine that fetches weights for blocks, if any are offloaded.
    pub(crate) fn engine_of_blocks(&self) -> Option<&Arc<OffloadEngine>> {
        let shards = |member: &Membership| !member.group.replicates_weights();
        let shards = self.membership_of_several().is_some_and(shards);
        let is_offloaded = |engine: &&Arc<OffloadEngine>| {
            engine.config.offloaded_blocks().is_some()
                || (shards && !engine.config.offloads_states())
        };
        self.engine.as_ref().filter(is_offloaded)
    }

    /// Transfers `tensor`, of the parameter at `path` and without autodiff, to `device` in `dtype`.
    pub(crate) fn transfer(
        &self,
        path: &str,
        tensor: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        let travels = tensor.device() != *device;
        let ranks = self.membership.as_ref().filter(|_| travels);
        // Simultaneous transfers in both directions can block each other on some backends.
        let _one = ranks.map(|member| member.group.transfer.lock());
        let transfer = transferred(tensor.0, device, dtype);
        if ranks.is_some() {
            // Another thread may compute with the result.
            flush(device);
        }
        transfer
            .map(AnyTensor::from)
            .map_err(|reason| FusedError::Transfer {
                path: path.to_string(),
                reason,
            })
    }

    /// Transfers a stored value without autodiff to the compute device and type.
    pub(crate) fn to_compute(&self, path: &str, value: AnyTensor) -> Result<AnyTensor, FusedError> {
        let (device, dtype) = (self.compute_device(&value.device()), value.dtype());
        self.transfer(path, value, &device, self.policy.compute_dtype(dtype))
    }
}
