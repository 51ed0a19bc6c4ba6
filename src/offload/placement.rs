use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{DType, Device, Tensor};

use super::config::{Offload, OffloadConfig, WaitingBlocks};
use crate::device;
use crate::error::FusedError;
use crate::tap;
use crate::worker::Worker;

/// Where the parts of a training are, and who moves them.
pub(crate) struct Placement {
    config: OffloadConfig,
    /// Where the model computes, with autodiff.
    device: Device,
    /// What waits there is without autodiff.
    host: Device,
    to_host: Worker,
    to_device: Worker,
    /// Bytes of the largest parameter that rests on the host.
    largest: AtomicUsize,
}

impl Debug for Placement {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (config, device) = (&self.config, &self.device);
        write!(f, "Placement({config:?}, {device:?})")
    }
}

impl Placement {
    /// The placement of a model that computes on `device`; `config` has been checked.
    pub(crate) fn new(config: OffloadConfig, device: &Device) -> Result<Self, FusedError> {
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
        if config.states_wait() {
            check_loading()?;
        }
        let device = match device.is_autodiff() {
            true => device.clone(),
            false => device.clone().autodiff(),
        };
        let worker = |name| {
            Worker::new(name).map_err(|error| FusedError::Offload {
                reason: format!("no thread could be started for it: {error}"),
            })
        };
        Ok(Self {
            to_host: worker("to host")?,
            to_device: worker("to device")?,
            largest: AtomicUsize::new(0),
            config,
            device,
            host,
        })
    }

    /// A parameter of so many bytes rests on the host.
    pub(crate) fn houses(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Brings a gradient of so many bytes to the host and steps its parameter there, beside what this thread does;
    /// waits while too much is under way.
    pub(crate) fn send_home(&self, bytes: usize, step: impl FnOnce() + Send + 'static) {
        let largest = self.largest.load(Ordering::Relaxed);
        let limit = self.config.max_in_flight.unwrap_or(largest + largest / 4);
        let device = self.device.clone();
        self.to_host.give(bytes, limit, move || {
            step();
            device::hand_over(&device);
        });
    }

    /// Brings weights to the device before they are read, beside what this thread does.
    pub(crate) fn send_ahead(&self, fetch: impl FnOnce() + Send + 'static) {
        let device = self.device.clone();
        self.to_device.give(0, usize::MAX, move || {
            fetch();
            device::hand_over(&device);
        });
    }

    /// Waits until the device has computed what this thread has asked it for, so that it has let go of what it needs
    /// no longer.
    pub(crate) fn catch_up(&self) {
        if let Err(error) = self.device.sync() {
            // Whoever reads a result is told what has failed.
            log::debug!("{:?} has not computed everything: {error}", self.device);
        }
    }

    /// Waits until all weights that were sent for are there.
    pub(crate) fn wait_for_weights(&self) {
        self.to_device.wait();
    }

    /// Waits until all updates that were sent to the host are done.
    pub(crate) fn wait_for_updates(&self) {
        self.to_host.wait();
    }

    /// Lets the device have what this thread has asked it for.
    pub(crate) fn hand_over(&self) {
        device::hand_over(&self.device);
    }

    /// Waits until nothing is under way.
    pub(crate) fn wait(&self) {
        self.to_host.wait();
        self.to_device.wait();
    }

    /// The same with threads of its own.
    pub(crate) fn again(&self) -> Result<Self, FusedError> {
        Self::new(self.config.clone(), &self.device)
    }

    /// Whether it is that of `config`, with a model that computes on `device`.
    pub(crate) fn is_of(&self, config: &OffloadConfig, device: &Device) -> bool {
        self.config == *config && self.device == *device
    }

    /// Where the model computes, with autodiff.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Where things wait, without autodiff.
    pub(crate) fn host(&self) -> &Device {
        &self.host
    }

    /// Whether a parameter of so many elements rests on the host, and is stepped there.
    pub(crate) fn rests_on_host(&self, elements: usize) -> bool {
        self.config.rests_on_host(elements)
    }

    /// Whether optimizer states wait on the host while the parameters rest on the device.
    pub(crate) fn states_wait(&self) -> bool {
        self.config.states_wait()
    }

    /// Whether a frozen parameter of so many elements waits on the host.
    pub(crate) fn frozen_waits(&self, elements: usize) -> bool {
        self.config.frozen_waits(elements)
    }

    /// Whether the device keeps a copy of what rests on the host, until more is known.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.waiting_blocks().is_none()
    }

    /// Of which blocks the weights wait, if those of any do.
    pub(crate) fn waiting_blocks(&self) -> Option<WaitingBlocks> {
        match self.config.offload {
            Offload::Weights(blocks) => Some(blocks),
            Offload::States | Offload::Updates => None,
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
