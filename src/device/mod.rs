//! Checks of devices.
//!
//! A CubeCL device does not report every failure. So it is checked for availability and correct results before
//! training, and for asynchronous errors in parameters after a step. CubeCL compiles a kernel at its first launch. If
//! that fails with an error, the output of the kernel is marked as lost, and reading it returns the error
//! ([`AsyncErrors`] checks the marks). If the compiler panics on the device's thread, the buffers are unchanged and
//! nothing is reported: only a known result reveals that (`check`).

#[cfg(feature = "cubecl")]
mod async_errors;
#[cfg(not(feature = "cubecl"))]
mod async_errors_stub;
mod check;
mod connected;
#[cfg(feature = "cuda")]
mod driver;
mod self_test;
#[cfg(feature = "cubecl")]
mod streams;
mod threads;

use burn::tensor::Tensor;

#[cfg(feature = "cubecl")]
pub(crate) use async_errors::AsyncErrors;
#[cfg(not(feature = "cubecl"))]
pub(crate) use async_errors_stub::AsyncErrors;
pub use check::check_device;
pub(crate) use check::{check, check_has, check_there, has};
pub(crate) use connected::check_connected;
#[cfg(feature = "cubecl")]
pub(crate) use streams::check_streams;
pub(crate) use threads::warm_threads;

use crate::error::FusedError;

/// Returns the device's error if it has failed to compute `tensor`, which has no autodiff. Waits for the device's
/// thread only, not for the device.
pub(crate) fn check_async_errors<const D: usize>(tensor: &Tensor<D>) -> Result<(), String> {
    let mut errors = AsyncErrors::new();
    errors.add("", tensor);
    errors.finish().map_err(|error| match error {
        FusedError::NotComputed { reason, .. } => reason,
        error => error.to_string(),
    })
}
