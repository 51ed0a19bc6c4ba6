//! A device that is missing, does not support a float type, or computes wrong results is refused by name, if possible
//! before training.

#[cfg(feature = "cuda")]
mod absent;
#[cfg(feature = "wgpu")]
mod failing;
#[cfg(feature = "cpu")]
mod wrong;

use crate::common::*;

on_every_backend!(
    device_check_passes_where_device_computes,
    training_in_type_that_device_lacks_is_refused,
);

/// All float types of Burn.
const FLOATS: [FloatDType; 5] = [
    FloatDType::F64,
    FloatDType::F32,
    FloatDType::Flex32,
    FloatDType::F16,
    FloatDType::BF16,
];

fn device_check_passes_where_device_computes(device: &Device) {
    check_device(device, FloatDType::F32).unwrap();
    for dtype in FLOATS {
        let is_supported = device.supports_dtype(dtype);
        match check_device(device, dtype) {
            Ok(()) => assert!(is_supported, "{dtype:?}"),
            Err(error) => {
                assert_matches!(error, FusedError::FloatTypeNotSupported { .. });
                assert_says(&error, &format!("can't compute in {dtype:?}"));
                assert!(!is_supported, "{dtype:?}");
                let model = LinearConfig::new(2, 2).init(device);
                assert_eq!(cast(model, dtype).map(drop), Err(error));
                continue;
            }
        }
        // A second check computes nothing.
        check_device(&device.clone().inner(), dtype).unwrap();
        let x = Tensor::<2>::ones([2, 2], (device, DType::from(dtype)));
        // Vulkan has no `exp` and `log` in f64, though its devices have the type.
        let product = x.clone().matmul(x * 1.5).sqrt().sum().into_scalar::<f64>();
        assert!((product - 6.93).abs() < 0.1, "{dtype:?}");
    }
}

fn training_in_type_that_device_lacks_is_refused(device: &Device) {
    let host = flex();
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        if device.supports_dtype(dtype) {
            continue;
        }
        let sgd = || SgdConfig::new().init();
        let on_host = || -> Linear { LinearConfig::new(2, 2).init(&host) };
        let half = || cast(on_host(), dtype).unwrap();
        let frozen = || vec![on_host(), half().no_grad()];
        let offload = OffloadConfig::new(Offload::Updates).with_min_elements(1);
        let offload = || FusedConfig::offload(offload.clone());
        let computed = offload().with_compute_dtype(Some(dtype));
        let refused = [
            FusedReplicas::new(half(), sgd(), [device.clone(), device.clone()]).map(drop),
            FusedReplicas::new(half(), sgd(), [host.clone(), device.clone()]).map(drop),
            FusedReplicas::new(frozen(), sgd(), [device.clone(), device.clone()]).map(drop),
            FusedOptimizer::new(half(), sgd())
                .unwrap()
                .with_config_on(offload(), device)
                .map(drop),
            FusedOptimizer::new(frozen(), sgd())
                .unwrap()
                .with_config_on(offload(), device)
                .map(drop),
            FusedOptimizer::new(on_host(), sgd())
                .unwrap()
                .with_config_on(computed, device)
                .map(drop),
        ];
        for (index, refused) in refused.into_iter().enumerate() {
            println!("{index}, {dtype:?}");
            assert_matches!(refused, Err(FusedError::FloatTypeNotSupported { .. }));
        }
    }
}
