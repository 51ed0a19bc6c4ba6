//! A device that is not there, can't compute in a float type, or computes something else is refused by name,
//! before training where that can be known.

#[cfg(feature = "cuda")]
mod absent;
#[cfg(feature = "wgpu")]
mod failing;
#[cfg(feature = "cpu")]
mod wrong;

use backburn::{FusedError, check_device};
use burn::tensor::{Device, FloatDType};

use crate::backends::on_every_backend;

on_every_backend!(
    a_device_that_computes_passes,
    what_the_device_can_not_compute_in_is_refused,
);

fn a_device_that_computes_passes(device: &Device) {
    check_device(device, FloatDType::F32).unwrap();
    // And again, when nothing needs to be computed.
    check_device(&device.clone().inner(), FloatDType::F32).unwrap();
}

fn what_the_device_can_not_compute_in_is_refused(device: &Device) {
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let supported = device.supports_dtype(dtype);
        match check_device(device, dtype) {
            Ok(()) => {}
            Err(FusedError::FloatTypeNotSupported { .. }) => assert!(!supported),
            Err(error) => panic!("{error}"),
        }
    }
}
