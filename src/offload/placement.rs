use std::fmt::{Debug, Formatter};

use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::config::{Offload, OffloadConfig, WaitingBlocks};
use super::worker::Worker;
use crate::device;
use crate::error::FusedError;
use crate::tap;

/// Where the parts of a training are, and who moves them.
pub(crate) struct Placement {
    config: OffloadConfig,
    /// Where the model computes, with autodiff.
    device: Device,
    /// What waits there is without autodiff.
    host: Device,
    to_host: Worker,
    to_device: Worker,
}

impl Debug for Placement {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (config, device) = (&self.config, &self.device);
        write!(f, "Placement({config:?}, {device:?})")
    }
}

impl Placement {
    /// The placement of a model that computes on `device`.
    pub(crate) fn new(config: OffloadConfig, device: &Device) -> Result<Self, FusedError> {
        config.check()?;
        let host = config.host.device()?;
        if device.clone().inner() == host {
            return Err(FusedError::Offload {
                reason: format!(
                    "{host:?} is to compute, and that is the host itself: name the device that has too \
                     little memory, or train without offload"
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
        if config.offload == Offload::States {
            check_loading()?;
        }
        let device = match device.is_autodiff() {
            true => device.clone(),
            false => device.clone().autodiff(),
        };
        let worker = |name| {
            Worker::new(name, config.max_in_flight).map_err(|error| FusedError::Offload {
                reason: format!("no thread could be started for it: {error}"),
            })
        };
        Ok(Self {
            to_host: worker("to host")?,
            to_device: worker("to device")?,
            config,
            device,
            host,
        })
    }

    /// The thread that brings gradients to the host and steps parameters there.
    pub(crate) fn to_host(&self) -> &Worker {
        &self.to_host
    }

    /// The thread that brings weights to the device before they are read.
    pub(crate) fn to_device(&self) -> &Worker {
        &self.to_device
    }

    /// Waits until nothing is under way.
    pub(crate) fn wait(&self) {
        self.to_host.wait();
        self.to_device.wait();
    }

    /// The same on another device.
    pub(crate) fn on(&self, device: &Device) -> Result<Self, FusedError> {
        Self::new(self.config.clone(), device)
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
        let is_small = elements < self.config.min_elements && self.config.compute_dtype.is_none();
        !self.states_wait() && !is_small
    }

    /// Whether optimizer states wait on the host while the parameters rest on the device.
    pub(crate) fn states_wait(&self) -> bool {
        self.config.offload == Offload::States
    }

    /// Whether that of a parameter of so many elements does.
    pub(crate) fn state_waits(&self, elements: usize) -> bool {
        self.states_wait() && elements >= self.config.min_elements
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

    /// The float type in which the device computes with a parameter of type `dtype`.
    pub(crate) fn compute_dtype(&self, dtype: DType) -> DType {
        self.config.compute_dtype.map_or(dtype, FloatDType::into)
    }

    /// A value that rests on the host, as the device computes with it.
    pub(crate) fn over<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        let value = match self.config.compute_dtype {
            Some(dtype) if DType::from(dtype) != value.dtype() => value.cast(dtype),
            _ => value,
        };
        value.to_device(&self.device.clone().inner())
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
