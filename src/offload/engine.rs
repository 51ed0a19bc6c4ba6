use std::sync::Arc;

use backburn_base::flush;
use burn::tensor::{DType, Device, Tensor};

use super::config::OffloadConfig;
use super::workers::TransferWorkers;
use crate::device;
use crate::error::FusedError;
use crate::tap;

/// The devices of an offloaded training, with the workers that transfer between them.
#[derive(Debug)]
pub(crate) struct OffloadEngine {
    pub(crate) config: OffloadConfig,
    /// The device that computes, with autodiff.
    pub(crate) device: Device,
    /// The device that stores, without autodiff.
    pub(crate) host: Device,
    pub(crate) transfers: Arc<TransferWorkers>,
}

impl OffloadEngine {
    /// Creates the engine of a model that computes on `device`. `config` must have been checked.
    pub(crate) fn new(
        config: OffloadConfig,
        max_bytes_in_flight: Option<usize>,
        device: &Device,
    ) -> Result<Self, FusedError> {
        let host = config.host.device()?;
        if device.clone().inner() == host {
            return Err(FusedError::Offload {
                reason: format!(
                    "the compute device, {host:?}, is the host itself: pass the device that has too little memory, or \
                     train without offload"
                ),
            });
        }
        device::check_there(device)?;
        if !tap::covers(device) {
            return Err(FusedError::Offload {
                reason: format!(
                    "this build of backburn does not support {device:?}: enable the feature of its backend"
                ),
            });
        }
        if config.offloads_states() {
            check_loading()?;
        }
        // The thread of the closure and two workers.
        #[cfg(feature = "cubecl")]
        device::check_streams(device, 3);
        let device = device.clone().autodiff();
        let separate_device = Some(device.clone().inner());
        Ok(Self {
            transfers: Arc::new(TransferWorkers::new(max_bytes_in_flight, separate_device)?),
            config,
            device,
            host,
        })
    }

    /// Queues the transfer of a gradient of this size to its master, and the step of the parameter: on the host, or on the
    /// device if the parameter is stored there. Blocks while too many bytes are in flight.
    pub(crate) fn queue_update(&self, bytes: usize, step: impl FnOnce() + Send + 'static) {
        let limit = self.transfers.limit.gradients();
        let job = self.with_flush(step);
        self.transfers.to_host.submit(bytes, limit, job);
    }

    /// Queues a transfer of weights or states to the device.
    pub(crate) fn queue_fetch(&self, fetch: impl FnOnce() + Send + 'static) {
        let job = self.with_flush(fetch);
        self.transfers.to_device.submit(0, usize::MAX, job);
    }

    /// Queues the eviction of an optimizer state to the host. One state is in flight at a time.
    pub(crate) fn queue_eviction(&self, evict: impl FnOnce() + Send + 'static) {
        // The step of the state must be on the device before the worker's stream reads it.
        flush(&self.device);
        self.transfers.to_host.submit(1, 1, self.with_flush(evict));
    }

    /// Returns a job that runs `job` and then flushes the operations of the worker's thread to the device.
    fn with_flush(&self, job: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
        let device = self.device.clone();
        move || {
            job();
            flush(&device);
        }
    }

    /// Waits until the device has executed the operations of this thread, so that it has released their memory.
    pub(crate) fn sync(&self) {
        if let Err(error) = self.device.sync() {
            // The error is reported where the result is read.
            log::debug!("{:?} failed to synchronize: {error}", self.device);
        }
    }
}

/// Returns an error if Burn would load offloaded states in another float type than f32: it uses the default type of its default
/// device.
fn check_loading() -> Result<(), FusedError> {
    let default = Device::default();
    device::check_there(&default)?;
    match Tensor::<1>::zeros([1], &default).dtype() {
        DType::F32 => Ok(()),
        dtype => Err(FusedError::Offload {
            reason: format!(
                "offloaded optimizer states are in f32, but Burn would load them as {dtype:?}, the default float type \
                of {default:?}: use `Offload::Updates`"
            ),
        }),
    }
}
