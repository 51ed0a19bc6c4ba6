#[cfg(any(feature = "cuda", feature = "rocm"))]
use burn::backend::DispatchDevice;
use burn::backend::{Backend, DTypeUsage, Dispatch};
use burn::tensor::{DType, Device, DeviceType, FloatDType};
use parking_lot::Mutex;

use super::self_test;
use super::{answers, caught, is_cubecl, is_remote};
use crate::error::FusedError;

/// The devices and types that have passed: kernels are compiled once a process.
static PASSED: Mutex<Vec<(Device, DType)>> = Mutex::new(Vec::new());

/// Whether `device` is there and computes in `dtype` what it should, by Burn's kernels and by those of
/// [`backburn::optim`](crate::optim): to be called first in `main`, before a model is created there.
///
/// [`FusedOptimizer::new`](crate::FusedOptimizer::new) asks the same of every device and float type of a
/// model's parameters, but a model can need its device before, and Burn panics where that is not there. CPU
/// backends are there, and compute; so does a server, or it was not started: both are only asked for the type (`ndarray` has no f16 and
/// no bf16, `flex` has both). With the environment variable `BACKBURN_TRUST_DEVICES=1` nothing is computed, for devices
/// that only pretend to.
///
/// ```
/// # use burn::tensor::{Device, FloatDType};
/// let device = Device::flex();
/// backburn::check_device(&device, FloatDType::F32)?;
/// # Ok::<(), backburn::FusedError>(())
/// ```
///
/// # Errors
///
/// - [`FusedError::DeviceUnavailable`]: the device is not there, or its driver is not, or is too old, or its server does not answer.
/// - [`FusedError::FloatTypeNotSupported`]: it can't compute in `dtype`.
/// - [`FusedError::WrongResults`]: it does not compute what it should, or nothing at all.
pub fn check_device(device: &Device, dtype: FloatDType) -> Result<(), FusedError> {
    check(device, dtype.into())
}

/// The fallible side of the first use of `devices`.
pub(crate) fn check_all_there(devices: &[Device]) -> Result<(), FusedError> {
    let mut devices = devices.iter().filter(|device| is_cubecl(device));
    devices.try_for_each(|device| is_there(&device.clone().inner()))
}

/// [`check_device`], for any type that a parameter may have.
pub(crate) fn check(device: &Device, dtype: DType) -> Result<(), FusedError> {
    let key = (device.clone().inner(), dtype);
    if PASSED.lock().contains(&key) {
        return Ok(());
    }
    let (device, dtype) = (&key.0, key.1);
    check_has(device, dtype)?;
    if !is_cubecl(device) || matches!(dtype, DType::QFloat(_)) {
        return Ok(());
    }
    if !is_trusted() {
        let tried = caught(|| self_test::run(device, dtype.into())).flatten();
        tried.map_err(|found| FusedError::WrongResults {
            dtype: format!("{dtype:?}"),
            device: format!("{device:?}"),
            found,
        })?;
    }
    PASSED.lock().push(key);
    Ok(())
}

/// Whether `device` has a type, by its own word: for all computations, or to keep what is quantized.
pub(crate) fn has(device: &Device, dtype: DType) -> bool {
    match dtype {
        DType::QFloat(_) => {
            let usage = Dispatch::dtype_usage(device.as_dispatch(), dtype);
            usage.contains(DTypeUsage::Storage)
        }
        _ => device.supports_dtype(dtype),
    }
}

/// Refuses a type that `device` does not [have](has).
pub(crate) fn check_has(device: &Device, dtype: DType) -> Result<(), FusedError> {
    let device = device.clone().inner();
    is_there(&device)?;
    match has(&device, dtype) {
        true => Ok(()),
        false => Err(FusedError::FloatTypeNotSupported {
            dtype: format!("{dtype:?}"),
            device: format!("{device:?}"),
        }),
    }
}

/// Whether the word of a device is taken for what it can do.
fn is_trusted() -> bool {
    std::env::var("BACKBURN_TRUST_DEVICES").as_deref() == Ok("1")
}

/// Opens `device`.
fn is_there(device: &Device) -> Result<(), FusedError> {
    let not_there = |reason| FusedError::DeviceUnavailable {
        device: format!("{device:?}"),
        reason,
    };
    if let Some(found) = caught(|| listed(device)).map_err(not_there)?
        && !found.contains(device)
    {
        return Err(not_there(match found.len() {
            0 => "none of its kind was found (is the driver installed?)".to_string(),
            found => format!("{found} of its kind were found, counted from 0"),
        }));
    }
    if is_remote(device) {
        answers(device).map_err(not_there)?;
    }
    caught(|| device.supports_dtype(DType::F32)).map_err(not_there)?;
    #[cfg(feature = "cuda")]
    if let Some(fault) = super::driver::fault(device)
        && !is_trusted()
    {
        return Err(not_there(fault));
    }
    Ok(())
}

/// The devices of the same kind that are on this machine, where they are named by number.
fn listed(device: &Device) -> Option<Vec<Device>> {
    #![allow(unreachable_patterns, unused_variables)] // What is there depends on the build.
    let list = |kind: DeviceType| Some(Device::enumerate(kind).iter().cloned().collect::<Vec<_>>());
    match device.as_dispatch() {
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cuda(_)) => list(DeviceType::Cuda),
        #[cfg(feature = "rocm")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Hip(_)) => list(DeviceType::Rocm),
        _ => None,
    }
}
