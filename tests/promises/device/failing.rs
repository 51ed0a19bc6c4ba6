//! An operation that fails in the middle of a training, here for want of memory.

use backburn::{FusedError, FusedOptimizer};
use burn::nn::LinearConfig;
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};

use crate::compare::weights;

#[test]
fn an_operation_that_fails_ends_the_step_with_the_name_of_a_parameter_on_wgpu() {
    let device = Device::wgpu(Default::default()).autodiff();
    let model = LinearConfig::new(4, 4).init(&device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init());
    let x = Tensor::<2>::ones([2, 4], &device);
    let before = weights(&fused.model());
    // More than any device has.
    let failed = fused.try_step(0.1, |model| {
        let huge = Tensor::<1>::zeros([1usize << 42], &device);
        model.forward(x.clone()).mean() * (huge.narrow(0, 0, 1) + 1.0)
    });
    let error = failed.map(drop).unwrap_err();
    assert!(matches!(error, FusedError::NotComputed { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("`weight`") || text.contains("`bias`"),
        "{text}"
    );
    // Nothing was written with it.
    assert_eq!(weights(&fused.model()), before);
    fused.step(0.1, |model| model.forward(x).mean());
    assert_ne!(weights(&fused.model()), before);
}
