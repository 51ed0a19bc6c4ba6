//! Under an emulated processor without bf16 instructions.

use crate::common::*;

/// Parameters in bf16.
struct InBf16;

impl ModuleMapper for InBf16 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let zeros = Tensor::zeros(value.shape(), (&value.device(), DType::BF16));
            zeros.require_grad()
        })
    }
}

#[test]
#[ignore = "`.ci/cpu` runs it where the symbol is missing that kernels in bf16 need"]
fn what_does_not_compile_is_noticed_before_training() {
    let device = Device::cpu();
    check_device(&device, FloatDType::F32).unwrap();
    let wrong = check_device(&device, FloatDType::BF16).unwrap_err();
    assert_matches!(wrong, FusedError::WrongResults { .. });
    let text = wrong.to_string();
    assert!(text.contains("Cpu") && text.contains("BF16"), "{text}");

    let model = LinearConfig::new(2, 2).init(&device.autodiff());
    let model = model.map(&mut InBf16);
    let refused = FusedOptimizer::new(model, SgdConfig::new().init());
    assert_eq!(refused.map(drop), Err(wrong));
}
