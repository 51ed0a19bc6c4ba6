//! What devices are asked, and how tensors go from one to another.
//!
//! Not everything that goes wrong on a device of CubeCL's is told, so it is asked whether it is there and computes, before
//! training, and whether it has computed the parameters, after a step.
//! CubeCL compiles a kernel when it is first launched. Where that fails with an error, all that the kernel was to
//! write counts as lost, and a read of it says why ([`Written`] asks for it). Where the compiler panics, on the
//! thread of the device, the buffers stay as they are, and nothing says so: only a result that is known
//! beforehand tells ([`check`]).

mod check;
#[cfg(feature = "cuda")]
mod driver;
mod read;
mod servers;
#[cfg(feature = "cubecl")]
mod streams;
mod threads;
mod transfer;
mod trial;
#[cfg(not(feature = "cubecl"))]
mod unasked;
#[cfg(feature = "cubecl")]
mod written;

use burn::tensor::{Device, Tensor};

pub use check::check_device;
pub(crate) use check::{caught, check, check_all_there, check_has, has};
pub(crate) use read::{in_memory, moved, of_data, read};
pub(crate) use servers::{answered, check_connected, forked, is_remote, sent};
#[cfg(feature = "cubecl")]
pub(crate) use streams::check_streams;
pub(crate) use threads::warm_threads;
pub(crate) use transfer::{in_type, transferred};
#[cfg(not(feature = "cubecl"))]
pub(crate) use unasked::Written;
#[cfg(feature = "cubecl")]
pub(crate) use written::Written;

use crate::error::FusedError;

/// What the device says if it has failed to compute `tensor`, which has no autodiff. The device is not waited for,
/// only its thread.
pub(crate) fn check_written<const D: usize>(tensor: &Tensor<D>) -> Result<(), String> {
    let mut written = Written::new();
    written.ask("", tensor);
    written.answer().map_err(|error| match error {
        FusedError::NotComputed { reason, .. } => reason,
        error => error.to_string(),
    })
}

/// Whether `device` is one of CubeCL's: it computes on a thread of its own, and what has to be known of a result
/// has to be waited for.
pub(crate) fn is_cubecl(device: &Device) -> bool {
    #[allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "cubecl")]
        burn::backend::DispatchDevice::Cube(_) => true,
        _ => false,
    }
}

/// Lets `device` have what this thread has asked it for.
///
/// As long as `fusion` gathers operations, they hold their tensors, those that were dropped among them. And every thread
/// has a stream of its own on CubeCL devices: what one has uploaded and not handed over, another can read too early. What is
/// meant for a server waits for more to be sent with it.
pub(crate) fn hand_over(device: &Device) {
    if (is_cubecl(device) || is_remote(device))
        && let Err(error) = device.flush()
    {
        // Whoever reads a result is told what has failed.
        log::debug!("{device:?} has not taken all operations: {error}");
    }
}

/// The device of this process that has all types, or `device` if this build has none.
#[cfg(feature = "flex")]
pub(crate) fn host(_device: &Device) -> Device {
    Device::flex()
}

/// The same without a backend for all types.
#[cfg(not(feature = "flex"))]
pub(crate) fn host(device: &Device) -> Device {
    device.clone()
}
