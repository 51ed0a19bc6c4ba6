use burn::tensor::Device;

use crate::device::is_cubecl;
use crate::error::FusedError;
use crate::in_flight::InFlightLimit;
use crate::worker::Worker;

/// Who moves things between a device and the host, beside the thread that computes.
#[derive(Debug)]
pub(crate) struct TransferWorkers {
    /// Brings gradients to the host, and steps their parameters there; and what is saved for the backward pass.
    pub(crate) to_host: Worker,
    /// Brings back what waits on the host, before it is read.
    pub(crate) to_device: Worker,
    /// Of what goes either way.
    pub(crate) limit: InFlightLimit,
    /// The device that is known to have memory of its own, without autodiff.
    separate_device: Option<Device>,
}

impl TransferWorkers {
    /// Those of a device that has memory of its own, or of any of CubeCL's, with so many bytes under way.
    pub(crate) fn new(
        max_bytes_in_flight: Option<usize>,
        separate_device: Option<Device>,
    ) -> Result<Self, FusedError> {
        let worker = |name| {
            Worker::new(name).map_err(|error| FusedError::Offload {
                reason: format!("no thread could be started for it: {error}"),
            })
        };
        Ok(Self {
            to_host: worker("to host")?,
            to_device: worker("to device")?,
            limit: InFlightLimit::new(max_bytes_in_flight),
            separate_device,
        })
    }

    /// Whether what is on `device`, without autodiff, takes no memory of the host.
    pub(super) fn has_own_memory(&self, device: &Device) -> bool {
        is_cubecl(device) || self.separate_device.as_ref() == Some(device)
    }

    /// Waits until nothing is under way.
    pub(crate) fn wait(&self) {
        self.to_host.wait_idle();
        self.to_device.wait_idle();
    }
}
