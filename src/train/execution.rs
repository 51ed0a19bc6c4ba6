use burn::tensor::Device;
use burn::train::{ExecutionStrategy, MultiDeviceOptim};

use crate::error::FusedError;
use crate::replica::Ownership;

/// The devices of a training.
#[derive(Clone, Debug, Default)]
pub(super) struct Execution {
    /// The named devices. If empty, the training runs on the model's device.
    pub(super) devices: Vec<Device>,
    /// The ownership of parameters if each device is a rank; `None` for a single device.
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
                "the list of devices is empty: pass one device for each rank"
            }
            ExecutionStrategy::MultiDevice(devices, optimizer) => {
                let ownership = Some(match optimizer {
                    MultiDeviceOptim::OptimMainDevice => Ownership::MainDevice,
                    MultiDeviceOptim::OptimSharded => Ownership::ByParamId,
                });
                return Ok(Self { devices, ownership });
            }
            ExecutionStrategy::DistributedDataParallel { .. } => {
                "distributed data parallel training is not supported, because Burn 0.22 has collectives for NCCL only: \
                use `ExecutionStrategy::multi` with `MultiDeviceOptim::OptimSharded`"
            }
        };
        let reason = reason.to_string();
        Err(FusedError::Replicas { reason })
    }
}
