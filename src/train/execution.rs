use burn::tensor::Device;
use burn::train::{ExecutionStrategy, MultiDeviceOptim};

use crate::error::FusedError;
use crate::replica::Ownership;

/// Where a training runs.
#[derive(Clone, Debug, Default)]
pub(super) enum Execution {
    /// Where the model is.
    #[default]
    OfModel,
    One(Device),
    Several {
        devices: Vec<Device>,
        ownership: Ownership,
    },
}

impl Execution {
    pub(super) fn of(strategy: ExecutionStrategy) -> Result<Self, FusedError> {
        let reason = match strategy {
            ExecutionStrategy::SingleDevice(device) => return Ok(Self::One(device)),
            ExecutionStrategy::MultiDevice(devices, _) if devices.is_empty() => {
                "there are no devices: name one for every rank"
            }
            ExecutionStrategy::MultiDevice(devices, optimizer) => {
                let ownership = match optimizer {
                    MultiDeviceOptim::OptimMainDevice => Ownership::MainDevice,
                    MultiDeviceOptim::OptimSharded => Ownership::ByParamId,
                };
                return Ok(Self::Several { devices, ownership });
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
