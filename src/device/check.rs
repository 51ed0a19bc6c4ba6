use backburn_base::caught::catch_message;
use backburn_base::{is_cubecl, is_remote, sync_with_timeout};
#[cfg(any(feature = "cuda", feature = "rocm"))]
use burn::backend::DispatchDevice;
use burn::backend::{Backend, DTypeUsage, Dispatch};
use burn::tensor::{DType, Device, DeviceType, FloatDType};
use parking_lot::Mutex;

use super::self_test;
use crate::error::FusedError;

/// The devices and types that have passed: kernels are compiled once per process.
static PASSED: Mutex<Vec<(Device, DType)>> = Mutex::new(Vec::new());

/// Checks that `device` is available and computes correctly in `dtype`: a sum and a product. Call it first in
/// `main`, before a model is created there.
///
/// [`FusedOptimizer::new`](crate::FusedOptimizer::new) checks every device and float type of a model's parameters. But
/// a model can need its device earlier, and Burn panics if the device is unavailable. CPU backends and remote devices
/// are only checked for the type (`ndarray` has no f16 and no bf16, `flex` has both). With the environment variable
/// `BACKBURN_TRUST_DEVICES=1` nothing is computed, for simulated devices.
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
/// - [`FusedError::DeviceUnavailable`]: the device or its driver is missing, the driver is too old, or the server does
///   not answer.
/// - [`FusedError::FloatTypeNotSupported`]: the device can't compute in `dtype`.
/// - [`FusedError::WrongResults`]: the device computes wrong results, or none.
pub fn check_device(device: &Device, dtype: FloatDType) -> Result<(), FusedError> {
    check(device, dtype.into())
}

/// Opens `device`, or returns an error.
pub(crate) fn check_there(device: &Device) -> Result<(), FusedError> {
    match is_cubecl(device) {
        true => is_there(&device.clone().inner()),
        false => Ok(()),
    }
}

/// Runs [`check_device`] for any type that a parameter may have.
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
        let tried = catch_message(|| self_test::run(device, dtype.into())).flatten();
        tried.map_err(|found| FusedError::WrongResults {
            dtype: format!("{dtype:?}"),
            device: format!("{device:?}"),
            found,
        })?;
    }
    PASSED.lock().push(key);
    Ok(())
}

/// Returns `true` if `device` reports support of a type: for all computations, or to store quantized values.
pub(crate) fn has(device: &Device, dtype: DType) -> bool {
    match dtype {
        DType::QFloat(_) => {
            let usage = Dispatch::dtype_usage(device.as_dispatch(), dtype);
            usage.contains(DTypeUsage::Storage)
        }
        _ => device.supports_dtype(dtype),
    }
}

/// Returns an error if `device` does not [support](has) a type.
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

/// Returns `true` if devices are trusted without a self-test.
fn is_trusted() -> bool {
    std::env::var("BACKBURN_TRUST_DEVICES").as_deref() == Ok("1")
}

/// Opens `device`.
fn is_there(device: &Device) -> Result<(), FusedError> {
    let not_there = |reason| FusedError::DeviceUnavailable {
        device: format!("{device:?}"),
        reason,
    };
    if let Some(found) = catch_message(|| devices_of_backend(device)).map_err(not_there)?
        && !found.contains(device)
    {
        return Err(not_there(match found.len() {
            0 => "no device of this kind was found".to_string(),
            found => format!("{found} devices of this kind were found, counted from 0"),
        }));
    }
    if is_remote(device) {
        sync_with_timeout(device).map_err(not_there)?;
    }
    catch_message(|| device.supports_dtype(DType::F32)).map_err(not_there)?;
    #[cfg(feature = "cuda")]
    if let Some(fault) = super::driver::fault(device)
        && !is_trusted()
    {
        return Err(not_there(fault));
    }
    Ok(())
}

/// Returns the devices of the same kind on this machine, if they have numbers.
fn devices_of_backend(device: &Device) -> Option<Vec<Device>> {
    #![allow(unreachable_patterns, unused_variables)] // The variants depend on the features.
    let list = |kind: DeviceType| Some(Device::enumerate(kind).iter().cloned().collect::<Vec<_>>());
    match device.as_dispatch() {
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cuda(_)) => list(DeviceType::Cuda),
        #[cfg(feature = "rocm")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Hip(_)) => list(DeviceType::Rocm),
        _ => None,
    }
}
