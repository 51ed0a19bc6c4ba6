//! Under an emulated processor without bf16 instructions.

use crate::common::*;

#[test]
#[ignore = "`.ci/cpu` runs it where the symbol is missing that kernels in bf16 need"]
fn kernel_that_does_not_compile_is_refused_before_training() {
    let device = Device::cpu();
    check_device(&device, FloatDType::F32).unwrap();
    let wrong = check_device(&device, FloatDType::BF16).unwrap_err();
    assert_matches!(wrong, FusedError::WrongResults { .. });
    assert_says(&wrong, "Cpu");
    assert_says(&wrong, "BF16");

    let model: Linear = LinearConfig::new(2, 2).init(&device.autodiff());
    let model = map_values(model, |_, value| {
        Tensor::zeros(value.shape(), (&value.device(), DType::BF16))
    });
    let refused = FusedOptimizer::new(model, SgdConfig::new().init());
    assert_eq!(refused.map(drop), Err(wrong));
}
