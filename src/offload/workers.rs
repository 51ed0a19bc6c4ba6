use backburn_base::is_cubecl;
use burn::tensor::Device;

use crate::error::FusedError;
use crate::threads::{InFlightLimit, Worker};

/// Background workers for transfers between a device and the host.
#[derive(Debug)]
pub(crate) struct TransferWorkers {
    /// Worker that runs updates in the order of their gradients: the transfer of the gradient, the step, and the transfer of
    /// a cached copy back to the device. It also evicts states and offloads activations.
    pub(crate) to_host: Worker,
    /// Worker that fetches offloaded tensors before they are read.
    pub(crate) to_device: Worker,
    /// Limit of the bytes in flight, in each direction.
    pub(crate) limit: InFlightLimit,
    /// A device with its own memory, without autodiff, in addition to those of CubeCL.
    separate_device: Option<Device>,
}

impl TransferWorkers {
    /// Starts the workers for `separate_device` and for any device of CubeCL.
    pub(crate) fn new(
        max_bytes_in_flight: Option<usize>,
        separate_device: Option<Device>,
    ) -> Result<Self, FusedError> {
        let worker = |name| {
            Worker::new(name).map_err(|error| FusedError::Offload {
                reason: format!(
                    "a background thread could not be started: {error}. Raise the limit of threads"
                ),
            })
        };
        Ok(Self {
            to_host: worker("to host")?,
            to_device: worker("to device")?,
            limit: InFlightLimit::new(max_bytes_in_flight),
            separate_device,
        })
    }

    /// Returns `true` if tensors on `device`, without autodiff, take no host memory.
    pub(crate) fn has_own_memory(&self, device: &Device) -> bool {
        is_cubecl(device) || self.separate_device.as_ref() == Some(device)
    }

    /// Waits until no transfer is in flight.
    pub(crate) fn wait(&self) {
        self.to_host.wait_idle();
        self.to_device.wait_idle();
    }
}
