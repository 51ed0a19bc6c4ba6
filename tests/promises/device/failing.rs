//! An operation that fails during a training, because memory is missing.

use crate::common::*;

#[test]
fn failed_operation_on_wgpu_ends_step_before_update() {
    let device = Device::wgpu(Default::default()).autodiff();
    let model = LinearConfig::new(4, 4).init(&device);
    let mut fused = FusedOptimizer::new(model, AdamConfig::new().init()).unwrap();
    let x = Tensor::<2>::ones([2, 4], &device);
    for _ in 0..2 {
        let before = weights(&fused.model());
        // More memory than any device has.
        let failed = fused.step(0.1, |model| {
            let huge = Tensor::<1>::zeros([1usize << 42], &device);
            model.forward(x.clone()).mean() * (huge.narrow(0, 0, 1) + 1.0)
        });
        let error = failed.map(drop);
        assert_matches!(error, Err(FusedError::LossNotComputed { .. }));
        // No value was computed from it.
        assert_eq!(weights(&fused.model()), before);
        fused
            .step(0.1, |model| model.forward(x.clone()).mean())
            .unwrap();
        assert_ne!(weights(&fused.model()), before);
    }
}

/// Returns a loss whose backward pass needs more memory than any device has, at the first layer.
fn loss(model: &[Linear], x: Tensor<2>, columns: usize) -> Tensor<1> {
    let x = model[0].forward(x);
    let [rows, width] = x.dims();
    // In the forward pass both are views, but the gradient of the second is a full tensor.
    let x = x.unsqueeze_dim::<3>(0).expand([columns, rows, width]);
    let x = x.narrow(0, 0, 1).squeeze_dim::<2>(0);
    let run = |linear: &Linear, x: Tensor<2>| linear.forward(x).tanh();
    gradient_checkpointing(&model[1], x, run).mean()
}

#[test]
fn failed_gradient_on_wgpu_leaves_offloaded_weights() {
    let device = Device::wgpu(Default::default()).autodiff();
    for offload in OFFLOADS {
        let model = linears(2, 8, &flex());
        // The weights are offloaded, the biases are not.
        let config = OffloadConfig::new(offload).with_min_elements(10);
        let mut fused = FusedOptimizer::new(model, AdamConfig::new().init())
            .unwrap()
            .with_config_on(FusedConfig::offload(config), &device)
            .unwrap();
        let x = Tensor::<2>::ones([2, 8], &device);
        fused.step(0.1, |model| loss(model, x.clone(), 3)).unwrap();
        let before = weights(&fused.model());
        let states = fused.to_record().len();

        let failed = fused.step(0.1, |model| loss(model, x.clone(), 1 << 40));
        let error = failed.map(drop).unwrap_err();
        assert_matches!(error, FusedError::GradientNotComputed { path, .. } if path.starts_with("0."));
        // The later layer was updated before.
        let after = weights(&fused.model());
        for ((path, before), (_, after)) in before.iter().zip(&after) {
            assert_eq!(path.starts_with("0."), before == after, "{path}");
            assert!(after.iter::<f32>().all(f32::is_finite), "{path}");
        }
        assert_eq!(fused.to_record().len(), states);
        fused.step(0.1, |model| loss(model, x.clone(), 3)).unwrap();
        let last = weights(&fused.model());
        assert!(last.iter().zip(&after).all(|(a, b)| a != b));
    }
}
