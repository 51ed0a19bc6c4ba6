//! Where the parameters of one rank rest, and how it computes with them.
//!
//! | training | home | type at home | a view | type of the view |
//! |---|---|---|---|---|
//! | one device | that device | the model's | shares it | same |
//! | bf16 computed in f32 | that device | bf16, low bits in the state | for a read | f32 |
//! | master weights | that device | f32 | for a read | bf16, f16 |
//! | states on the host | device; the states wait as records | the model's | shares it, or for a read | any |
//! | updates on the host | host | the model's | kept | any |
//! | weights on the host | host | the model's | for a read, in a block | any |
//! | `Sharding::State` (ZeRO 1 and 2) | the owner's device | the model's | kept | any |
//! | `Sharding::Full` (ZeRO 3) | the owner's device | the model's | for a read | any |
//! | both, with offload (ZeRO-Infinity) | host, or the owner's device | the model's | as above | any |
//! | frozen weights on the host | host | the model's | for a read, in a block | same |

mod request;

use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{DType, Device, FloatDType};

use crate::device::{hand_over, transferred};
use crate::error::FusedError;
use crate::offload::{OffloadEngine, TransferWorkers};
use crate::parameters::AnyTensor;
use crate::replica::Membership;
pub(crate) use request::{Request, Rest};

/// Where the parameters of one rank rest, and how it computes with them.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Where the model computes, if that is not where it is, and neither of the following says so.
    device: Option<Device>,
    request: Request,
    /// If something waits on the host.
    pub(crate) placement: Option<Arc<OffloadEngine>>,
    /// Which rank it is that of, if there is a group of ranks.
    pub(crate) member: Option<Membership>,
    /// Who moves what leaves the device for a while, if something does.
    pub(crate) transfers: Option<Arc<TransferWorkers>>,
}

/// Where a value rests, and is stepped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Site {
    /// Without autodiff.
    pub(crate) device: Device,
    /// Whether that is where things wait.
    pub(crate) is_host: bool,
}

/// What a rank has of a parameter to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// The value at home itself.
    Shared,
    /// A copy that it keeps.
    Kept,
    /// A copy for one read, or for those of one run of a block.
    ForRead,
    /// The same, from the device of another rank: for one read.
    Gathered,
}

impl Layout {
    /// Of a model on one device, which is `device` if something waits on the host; else the model says.
    pub(crate) fn new(request: Request, device: &Device) -> Result<Self, FusedError> {
        let max = request.max_bytes_in_flight;
        let offload = request.offload.clone();
        let placement = offload.map(|offload| OffloadEngine::new(offload, max, device));
        let placement = placement.transpose()?.map(Arc::new);
        let transfers = match &placement {
            Some(placement) => Some(placement.transfers.clone()),
            None if request.offload_inputs => Some(Arc::new(TransferWorkers::new(max, None)?)),
            None => None,
        };
        Ok(Self {
            placement,
            transfers,
            request,
            ..Self::default()
        })
    }

    /// Of a model that goes to `device`, to be checked before it does.
    pub(crate) fn on(device: &Device, compute_dtype: Option<FloatDType>) -> Self {
        Self {
            device: Some(device.clone()),
            request: Request {
                compute_dtype,
                ..Request::default()
            },
            ..Self::default()
        }
    }

    /// The same of one of several ranks.
    pub(crate) fn of_rank(self, member: Membership) -> Self {
        Self {
            member: Some(member),
            ..self
        }
    }

    /// Which rank it is that of, if there are others.
    pub(crate) fn among_others(&self) -> Option<&Membership> {
        self.member
            .as_ref()
            .filter(|member| member.group.has_several())
    }

    /// The rank that owns a parameter.
    pub(crate) fn owner(&self, id: ParamId) -> usize {
        self.member
            .as_ref()
            .map_or(0, |member| member.group.owner(id))
    }

    pub(crate) fn owns(&self, id: ParamId) -> bool {
        let rank = self.member.as_ref().map_or(0, |member| member.rank);
        self.owner(id) == rank
    }

    /// The most bytes that this rank has held in the last pass, beside the weights that rest there.
    pub(crate) fn most_held(&self) -> usize {
        self.member
            .as_ref()
            .map_or(0, |member| member.group.ledger.most(member.rank))
    }

    /// Whether this rank may keep a parameter between two passes.
    pub(crate) fn replicates(&self, id: ParamId) -> bool {
        let group = self.member.as_ref().map(|member| &member.group);
        self.owns(id) || group.is_none_or(|group| group.replicates_weights())
    }

    /// Where the model computes, with or without autodiff; none where it is.
    pub(crate) fn device(&self) -> Option<&Device> {
        let placement = self.placement.as_ref().map(|placement| &placement.device);
        let of_rank = self.member.as_ref().map(Membership::device);
        placement.or(of_rank).or(self.device.as_ref())
    }

    /// The float type in which the model computes with a parameter of type `dtype`.
    pub(crate) fn compute_dtype(&self, dtype: DType) -> DType {
        self.request.compute_dtype(dtype)
    }

    /// Whether a parameter of so many elements in `dtype` waits on the host, in training or frozen.
    pub(crate) fn waits(&self, is_trained: bool, elements: usize, dtype: DType) -> bool {
        self.request.rest(is_trained, elements, dtype) == Rest::Host
    }

    /// Where a parameter in training of so many elements in `dtype`, which is on `device`, rests.
    pub(crate) fn site(&self, id: ParamId, elements: usize, dtype: DType, device: &Device) -> Site {
        let waits = self.waits(true, elements, dtype);
        match self.placement.as_ref().filter(|_| waits) {
            Some(placement) => Site {
                device: placement.host.clone(),
                is_host: true,
            },
            None => self.site_of_leaf(id, device),
        }
    }

    /// The same of a parameter that is an ordinary leaf, and never waits.
    pub(crate) fn site_of_leaf(&self, id: ParamId, device: &Device) -> Site {
        let device = match &self.member {
            Some(member) => member.group.device(member.group.owner(id)).clone(),
            None => self.computes_on(device),
        };
        Site {
            device,
            is_host: false,
        }
    }

    /// Where this rank computes with a parameter that is on `device`, without autodiff.
    pub(crate) fn computes_on(&self, device: &Device) -> Device {
        self.device().unwrap_or(device).clone().inner()
    }

    /// What this rank has of a parameter that rests at `site` in `dtype`, and that it computes with on `device`.
    pub(crate) fn holding(
        &self,
        id: ParamId,
        site: &Site,
        dtype: DType,
        device: &Device,
    ) -> Holding {
        let replicates = self.replicates(id);
        if site.is_host {
            let placement = self.placement.as_ref();
            let keeps = placement.is_some_and(|it| it.config.offloaded_blocks().is_none());
            return match keeps && replicates {
                true => Holding::Kept,
                false => Holding::ForRead,
            };
        }
        match (site.device == *device, replicates) {
            (true, _) if self.compute_dtype(dtype) == dtype => Holding::Shared,
            // A copy of another type costs no transfer.
            (true, _) => Holding::ForRead,
            (false, true) => Holding::Kept,
            (false, false) => Holding::Gathered,
        }
    }

    /// Whether copies come and go with the runs of blocks.
    pub(crate) fn brings(&self) -> bool {
        self.request.compute_dtype.is_some() || self.placement_of_blocks().is_some()
    }

    /// From where they come, if they wait on the host.
    pub(crate) fn placement_of_blocks(&self) -> Option<&Arc<OffloadEngine>> {
        let shards = |member: &Membership| !member.group.replicates_weights();
        let shards = self.among_others().is_some_and(shards);
        let waits = |placement: &&Arc<OffloadEngine>| {
            placement.config.offloaded_blocks().is_some()
                || (shards && !placement.config.offloads_states())
        };
        self.placement.as_ref().filter(waits)
    }

    /// `tensor`, of the parameter at `path` and without autodiff, on `device` in `dtype`.
    pub(crate) fn carried(
        &self,
        path: &str,
        tensor: AnyTensor,
        device: &Device,
        dtype: DType,
    ) -> Result<AnyTensor, FusedError> {
        let travels = tensor.device() != *device;
        let ranks = self.member.as_ref().filter(|_| travels);
        // TransferWorkers in both directions at once can block each other on some backends.
        let _one = ranks.map(|member| member.group.one_transfer());
        let carried = transferred(tensor.untyped(), device, dtype);
        if ranks.is_some() {
            // Another thread may be the one that computes with it.
            hand_over(device);
        }
        carried
            .map(AnyTensor::from)
            .map_err(|reason| FusedError::Transfer {
                path: path.to_string(),
                reason,
            })
    }

    /// A value without autodiff that waits, as the model computes with it.
    pub(crate) fn over(&self, path: &str, value: AnyTensor) -> Result<AnyTensor, FusedError> {
        let (device, dtype) = (self.computes_on(&value.device()), value.dtype());
        self.carried(path, value, &device, self.compute_dtype(dtype))
    }
}
