//! This works on any machine with fewer than a hundred GPUs.

use crate::common::*;

#[test]
fn device_that_is_absent_is_refused_by_name() {
    let device = Device::cuda(99);
    let error = check_device(&device, FloatDType::F32).unwrap_err();
    assert_matches!(error, FusedError::DeviceUnavailable { .. });
    assert_says(&error, "99");

    // Before the first of its parameters is initialized there.
    let model = || LinearConfig::new(2, 2).init(&device.clone().autodiff());
    let sgd = || SgdConfig::new().init();
    let refused = FusedOptimizer::new(model(), sgd());
    assert_eq!(refused.map(drop), Err(error.clone()));
    let refused = FusedReplicas::new(model(), sgd(), [device.clone()]);
    assert_eq!(refused.map(drop), Err(error));
}
