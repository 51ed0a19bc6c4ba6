//! What devices are asked, and how tensors go from one to another.
//!
//! Not everything that goes wrong on a device of CubeCL's is told, so it is asked whether it is there and computes, before
//! training, and whether it has computed the parameters, after a step.
//! CubeCL compiles a kernel when it is first launched. Where that fails with an error, all that the kernel was to
//! write counts as lost, and a read of it says why ([`AsyncErrors`] asks for it). Where the compiler panics, on the
//! thread of the device, the buffers stay as they are, and nothing says so: only a result that is known
//! beforehand tells ([`check`]).

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
pub(crate) use backburn_base::caught::caught;
pub(crate) use backburn_base::{
    answered, answers, forked, hand_over, host, in_memory, is_cubecl, is_remote, moved, of_data,
    read, sent, transferred,
};
pub use check::check_device;
pub(crate) use check::{check, check_all_there, check_has, has};
pub(crate) use connected::check_connected;
#[cfg(feature = "cubecl")]
pub(crate) use streams::check_streams;
pub(crate) use threads::warm_threads;

use crate::error::FusedError;

/// What the device says if it has failed to compute `tensor`, which has no autodiff. The device is not waited for,
/// only its thread.
pub(crate) fn check_async_errors<const D: usize>(tensor: &Tensor<D>) -> Result<(), String> {
    let mut errors = AsyncErrors::new();
    errors.add("", tensor);
    errors.finish().map_err(|error| match error {
        FusedError::NotComputed { reason, .. } => reason,
        error => error.to_string(),
    })
}
