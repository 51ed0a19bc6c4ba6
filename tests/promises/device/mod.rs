//! A device that is not there, can't compute in a float type, or computes something else is refused by name,
//! before training where that can be known.

#[cfg(feature = "cuda")]
mod absent;
#[cfg(feature = "wgpu")]
mod failing;
#[cfg(feature = "cpu")]
mod wrong;

use crate::backends::on_every_backend;

use crate::common::*;

on_every_backend!(
    a_device_that_computes_passes,
    what_the_device_can_not_compute_in_is_refused,
    what_the_device_says_that_it_has_it_computes_in,
    no_training_begins_in_a_type_that_its_device_lacks,
);

fn a_device_that_computes_passes(device: &Device) {
    check_device(device, FloatDType::F32).unwrap();
    // And again, when nothing needs to be computed.
    check_device(&device.clone().inner(), FloatDType::F32).unwrap();
}

/// All float types of Burn.
const FLOATS: [FloatDType; 5] = [
    FloatDType::F64,
    FloatDType::F32,
    FloatDType::Flex32,
    FloatDType::F16,
    FloatDType::BF16,
];

fn is_missing(error: &FusedError) -> bool {
    matches!(error, FusedError::FloatTypeNotSupported { .. })
}

fn what_the_device_can_not_compute_in_is_refused(device: &Device) {
    for dtype in FLOATS {
        let supported = device.supports_dtype(dtype);
        match check_device(device, dtype) {
            Ok(()) => assert!(supported, "{dtype:?}"),
            Err(error) => assert!(is_missing(&error) && !supported, "{error}"),
        }
    }
}

fn what_the_device_says_that_it_has_it_computes_in(device: &Device) {
    for dtype in FLOATS {
        if check_device(device, dtype).is_ok() {
            let x = Tensor::<2>::ones([2, 2], (device, DType::from(dtype)));
            // Vulkan has no `exp` and `log` in f64, though its devices have the type.
            let product = x.clone().matmul(x * 1.5).sqrt().sum();
            assert!(
                (product.into_scalar::<f64>() - 6.93).abs() < 0.1,
                "{dtype:?}"
            );
        }
    }
}

fn no_training_begins_in_a_type_that_its_device_lacks(device: &Device) {
    let host = Device::flex().autodiff();
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        if device.supports_dtype(dtype) {
            continue;
        }
        let sgd = || SgdConfig::new().init();
        let on_host = || LinearConfig::new(2, 2).init(&host);
        let offload = || OffloadConfig::new(Offload::Updates).with_min_elements(1);
        let half = || cast(on_host(), dtype).unwrap();
        let frozen = || vec![on_host(), half().no_grad()];
        let doors = [
            cast(LinearConfig::new(2, 2).init(device), dtype).map(drop),
            FusedReplicas::new(half(), sgd(), [device.clone(), device.clone()]).map(drop),
            FusedReplicas::new(half(), sgd(), [host.clone(), device.clone()]).map(drop),
            FusedReplicas::new(frozen(), sgd(), [device.clone(), device.clone()]).map(drop),
            FusedOptimizer::new_ok(half(), sgd())
                .with_config_on(FusedConfig::offload(offload()), device)
                .map(drop),
            FusedOptimizer::new_ok(frozen(), sgd())
                .with_config_on(FusedConfig::offload(offload()), device)
                .map(drop),
            FusedOptimizer::new_ok(on_host(), sgd())
                .with_config_on(
                    FusedConfig::offload(offload()).with_compute_dtype(Some(dtype)),
                    device,
                )
                .map(drop),
        ];
        for (door, opened) in doors.into_iter().enumerate() {
            let error = opened.expect_err("it is refused");
            assert!(is_missing(&error), "door {door}: {error}");
        }
    }
}
