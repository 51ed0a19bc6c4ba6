use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::config::OffloadConfig;
use super::workers::TransferWorkers;
use crate::device;
use crate::error::FusedError;
use crate::tap;

/// Where the parts of a training are, and who moves them.
#[derive(Debug)]
pub(crate) struct OffloadEngine {
    pub(crate) config: OffloadConfig,
    /// Where the model computes, with autodiff.
    pub(crate) device: Device,
    /// What waits there is without autodiff.
    pub(crate) host: Device,
    pub(crate) transfers: Arc<TransferWorkers>,
}

impl OffloadEngine {
    /// The placement of a model that computes on `device`, with so many bytes under way; `config` has been checked.
    pub(crate) fn new(
        config: OffloadConfig,
        max_bytes_in_flight: Option<usize>,
        device: &Device,
    ) -> Result<Self, FusedError> {
        let host = config.host.device()?;
        if device.clone().inner() == host {
            return Err(FusedError::Offload {
                reason: format!(
                    "the device that computes, {host:?}, is the host itself: name the device that has too little memory, or \
                     train without offload"
                ),
            });
        }
        device::check_all_there(std::slice::from_ref(device))?;
        if !tap::covers(device) {
            return Err(FusedError::Offload {
                reason: format!(
                    "this build of backburn does not cover {device:?}: enable the feature of its backend"
                ),
            });
        }
        if config.offloads_states() {
            check_loading()?;
        }
        // That of the closure, and two of its own.
        #[cfg(feature = "cubecl")]
        device::check_streams(device, 3);
        let device = match device.is_autodiff() {
            true => device.clone(),
            false => device.clone().autodiff(),
        };
        let separate_device = Some(device.clone().inner());
        Ok(Self {
            transfers: Arc::new(TransferWorkers::new(max_bytes_in_flight, separate_device)?),
            config,
            device,
            host,
        })
    }

    /// Brings a gradient of so many bytes to the host and steps its parameter there, beside what this thread does;
    /// waits while too much is under way.
    pub(crate) fn step_on_host(&self, bytes: usize, step: impl FnOnce() + Send + 'static) {
        let limit = self.transfers.limit.gradients();
        let job = self.with_flush(step);
        self.transfers.to_host.submit(bytes, limit, job);
    }

    /// Brings weights to the device before they are read, beside what this thread does.
    pub(crate) fn prefetch(&self, fetch: impl FnOnce() + Send + 'static) {
        let job = self.with_flush(fetch);
        self.transfers.to_device.submit(0, usize::MAX, job);
    }

    /// Has an optimizer state leave for the host beside what this thread does, one at a time.
    pub(crate) fn evict_state(&self, leave: impl FnOnce() + Send + 'static) {
        // It was stepped on this thread's stream.
        device::hand_over(&self.device);
        self.transfers.to_host.submit(1, 1, self.with_flush(leave));
    }

    /// `job`, after which the device has what the thread of the job has asked it for.
    fn with_flush(&self, job: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
        let device = self.device.clone();
        move || {
            job();
            device::hand_over(&device);
        }
    }

    /// Waits until the device has computed what this thread has asked it for, so that it has let go of what it needs
    /// no longer.
    pub(crate) fn sync(&self) {
        if let Err(error) = self.device.sync() {
            // Whoever reads a result is told what has failed.
            log::debug!("{:?} has not computed everything: {error}", self.device);
        }
    }
}

/// Refuses to let states wait where Burn would load them in another float type than f32: it takes the default type
/// of its default device.
fn check_loading() -> Result<(), FusedError> {
    let default = Device::default();
    device::check_all_there(std::slice::from_ref(&default))?;
    match Tensor::<1>::zeros([1], &default).dtype() {
        DType::F32 => Ok(()),
        dtype => Err(FusedError::Offload {
            reason: format!(
                "optimizer states wait in f32, and Burn would load them as {dtype:?}, the default float type \
                 of {default:?}: use `Offload::Updates`"
            ),
        }),
    }
}
