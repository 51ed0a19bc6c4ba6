//! Gradients at the limits of the float range, and half types.

use super::*;

fn gradients_of_any_size_are_clipped_to_maximum(device: &Device) {
    for size in [1e-30, 1e-22, 1e-12, 1.0, 1e12, 1e22, 1e37] {
        let weight = Param::from_tensor(Tensor::<1>::zeros([4], device));
        let max_norm = size / 10.0;
        let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::exact(max_norm))
            .unwrap();
        // The norm is 5 times the size.
        let gradient = Tensor::from_data([3.0 * size, -4.0 * size, 0.0, 0.0], device);
        fused
            .step_repeatable(1.0, |weight: &Param<_>| {
                (weight.val() * gradient.clone()).sum()
            })
            .unwrap();
        let norm = fused.last_step().gradient_norm.unwrap();
        assert!((norm / size - 5.0).abs() < 1e-5, "{norm} for {size}");
        let expected = [-0.06, 0.08, 0.0, 0.0];
        for (moved, expected) in elements(&fused.model()).iter().zip(expected) {
            assert!((moved / size - expected).abs() < 1e-5, "{moved} for {size}");
        }
    }
}

/// One element and many, of rows that no vector divides, in every type, dense and as a view.
fn norm_of_any_shape_and_type_counts_all_elements(device: &Device) {
    let dtypes = [
        FloatDType::F32,
        FloatDType::F16,
        FloatDType::BF16,
        FloatDType::F64,
    ];
    for dtype in dtypes.into_iter().filter(|it| device.supports_dtype(*it)) {
        for [rows, columns] in [[1, 1], [3, 5], [257, 131], [64, 1024]] {
            let count = (rows * columns) as i64;
            // In steps that half types can represent, of either sign.
            let gradient = Tensor::<1, Int>::arange(0..count, device).remainder_scalar(127);
            let gradient = gradient.float().div_scalar(64.0).sub_scalar(0.5);
            let gradient = gradient.reshape([rows, columns]).cast(dtype);
            let elements = gradient.to_data();
            let squares = elements.iter::<f64>().map(|element| element.powi(2));
            let norm = squares.sum::<f64>().sqrt();
            for is_view in [false, true] {
                let shape = [[rows, columns], [columns, rows]][usize::from(is_view)];
                let weight = Tensor::<2>::zeros(shape, device).cast(dtype).detach();
                let weight = Param::from_tensor(weight);
                let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
                    .unwrap()
                    .with_config(FusedConfig::exact(1e9))
                    .unwrap();
                fused
                    .step_repeatable(0.0, |weight: &Param<Tensor<2>>| {
                        let weight = weight.val();
                        let weight = if is_view { weight.transpose() } else { weight };
                        // A sum would leave the range of half types.
                        (weight * gradient.clone()).cast(FloatDType::F32).sum()
                    })
                    .unwrap();
                let found = fused.last_step().gradient_norm.unwrap();
                // Some backends sum f32 sequentially.
                let error = (found / norm - 1.0).abs();
                assert!(
                    error < 1e-4,
                    "{found}, not {norm}: {dtype:?}, {shape:?}, {is_view}"
                );
            }
        }
    }
}

on_every_backend!(
    gradients_of_any_size_are_clipped_to_maximum,
    norm_of_any_shape_and_type_counts_all_elements,
);

/// The quotient of clipping coefficient and loss scale is too small for f32.
#[test]
fn clipping_under_largest_loss_scale_is_exact() {
    let device = flex();
    let train = |scaling: Option<LossScalingConfig>| {
        let weight = Param::from_tensor(Tensor::<1>::ones([4], &device));
        let clipping = GlobalNormClippingConfig::ExactInBuffer(1e-8);
        let config = FusedConfig::new().with_clipping(Some(clipping));
        let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
            .unwrap()
            .with_config(config.with_loss_scaling(scaling))
            .unwrap();
        let gradient = Tensor::<1>::full([4], 0.5, &device);
        let loss = |weight: &Param<Tensor<1>>| (weight.val() * gradient.clone()).sum();
        fused.step(1e6, loss).unwrap();
        elements(&fused.model())
    };
    let scaling = LossScalingConfig::new()
        .with_initial_scale(2f64.powi(126))
        .with_growth_interval(None);
    assert_eq!(train(Some(scaling)), train(None));
    let moved = 1.0 - train(None)[0];
    assert!((moved - 0.005).abs() < 1e-6, "{moved}");
}

/// The reciprocal of the scale is not representable in f16.
#[test]
fn half_parameters_move_under_large_loss_scale() {
    let device = flex();
    let scale = 2f64.powi(26);
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let value = Tensor::<1>::ones([4], &device).cast(dtype);
        let weight = Param::from_tensor(value.detach());
        let scaling = LossScalingConfig::new()
            .with_initial_scale(scale)
            .with_growth_interval(None);
        let mut fused = FusedOptimizer::new(weight, SgdConfig::new().init())
            .unwrap()
            .with_config(FusedConfig::scaling(scaling))
            .unwrap();
        // Scaled, the gradient is 2^15.
        let gradient = Tensor::<1>::full([4], 2f64.powi(-11), &device);
        fused
            .step_repeatable(16.0, |weight| {
                (weight.val().cast(FloatDType::F32) * gradient.clone()).sum()
            })
            .unwrap();
        assert!(!fused.last_step().overflowed);
        assert_eq!(
            elements(&fused.model()),
            [1.0 - 2f64.powi(-7); 4],
            "{dtype:?}"
        );
    }
}
