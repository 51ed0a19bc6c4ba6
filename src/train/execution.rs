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
        let refused = |reason: &str| {
            let reason = reason.to_string();
            Err(FusedError::Replicas { reason })
        };
        let (devices, optimizer) = match strategy {
            ExecutionStrategy::SingleDevice(device) => (vec![device], None),
            ExecutionStrategy::MultiDevice(devices, optimizer) => (devices, Some(optimizer)),
            ExecutionStrategy::DistributedDataParallel { .. } => {
                return refused(
                    "distributed data parallel training is not supported, because Burn 0.22 has collectives for NCCL only: \
                    use `ExecutionStrategy::multi` with `MultiDeviceOptim::OptimSharded`",
                );
            }
        };
        if devices.is_empty() {
            return refused("the list of devices is empty: pass one device for each rank");
        }
        // As in Burn, a single device is no rank.
        let optimizer = optimizer.filter(|_| devices.len() > 1);
        let ownership = optimizer.map(|optimizer| match optimizer {
            MultiDeviceOptim::OptimMainDevice => Ownership::MainDevice,
            MultiDeviceOptim::OptimSharded => Ownership::ByParamId,
        });
        Ok(Self { devices, ownership })
    }
}
