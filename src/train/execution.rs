use burn::tensor::Device;
use burn::train::{ExecutionStrategy, MultiDeviceOptim};

use crate::error::FusedError;
use crate::replica::Ownership;

/// Where a training runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Execution {
    /// Without any it runs where the model is.
    pub(super) devices: Vec<Device>,
    /// If each of them is a rank.
    pub(super) ownership: Option<Ownership>,
}

impl Execution {
    pub(super) fn of(strategy: ExecutionStrategy) -> Result<Self, FusedError> {
        let reason = match strategy {
            ExecutionStrategy::SingleDevice(device) => {
                return Ok(Self {
                    devices: vec![device],
                    ownership: None,
                });
            }
            ExecutionStrategy::MultiDevice(devices, _) if devices.is_empty() => {
                "there are no devices: name one for every rank"
            }
            ExecutionStrategy::MultiDevice(devices, optimizer) => {
                let ownership = Some(match optimizer {
                    MultiDeviceOptim::OptimMainDevice => Ownership::MainDevice,
                    MultiDeviceOptim::OptimSharded => Ownership::ByParamId,
                });
                return Ok(Self { devices, ownership });
            }
            ExecutionStrategy::DistributedDataParallel { .. } => {
                "distributed data parallel training needs collectives that Burn 0.22 has for NCCL only, and is not \
                 fused yet: use `ExecutionStrategy::multi` with `MultiDeviceOptim::OptimSharded`"
            }
        };
        let reason = reason.to_string();
        Err(FusedError::Replicas { reason })
    }
}
