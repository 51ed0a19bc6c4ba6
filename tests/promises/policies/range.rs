//! Gradients at the ends of what a float can hold, half types, and models on two backends.

use super::*;
use crate::backends::on_every_backend;

/// The gradient of the loss is `gradient`, whatever the weight.
fn step_with(fused: &mut FusedOptimizer<Param<Tensor<1>>>, gradient: Tensor<1>) {
    fused.step_repeatable_ok(1.0, |weight| (weight.val() * gradient.clone()).sum());
}

fn gradients_of_any_size_are_clipped_to_the_norm(device: &Device) {
    for size in [1e-30, 1e-22, 1e-12, 1.0, 1e12, 1e22, 1e37] {
        let weight = Param::from_tensor(Tensor::<1>::zeros([4], device));
        let max_norm = size / 10.0;
        let mut fused = FusedOptimizer::new_ok(weight, SgdConfig::new().init())
            .with_config_ok(FusedConfig::exact(max_norm));
        // The norm is 5 times the size.
        let gradient = Tensor::from_data([3.0 * size, -4.0 * size, 0.0, 0.0], device);
        step_with(&mut fused, gradient);
        let norm = fused.last_step().gradient_norm.unwrap();
        assert!((norm / size - 5.0).abs() < 1e-5, "{norm} for {size}");
        let moved: Vec<f64> = fused.model().val().into_data().iter().collect();
        let expected = [-0.06, 0.08, 0.0, 0.0];
        for (moved, expected) in moved.iter().zip(expected) {
            assert!((moved / size - expected).abs() < 1e-5, "{moved} for {size}");
        }
    }
}

/// One element and many, of rows that no vector divides, in every type, dense and as a view.
fn norms_are_those_of_all_elements(device: &Device) {
    let dtypes = [
        FloatDType::F32,
        FloatDType::F16,
        FloatDType::BF16,
        FloatDType::F64,
    ];
    for dtype in dtypes
        .into_iter()
        .filter(|dtype| device.supports_dtype(*dtype))
    {
        for [rows, columns] in [[1, 1], [3, 5], [257, 131], [64, 1024]] {
            let count = (rows * columns) as i64;
            // In steps that half types have, of either sign.
            let gradient = Tensor::<1, Int>::arange(0..count, device).remainder_scalar(127);
            let gradient = gradient.float().div_scalar(64.0).sub_scalar(0.5);
            let gradient = gradient.reshape([rows, columns]).cast(dtype);
            let elements = gradient.to_data();
            let squares = elements.iter::<f64>().map(|element| element.powi(2));
            let norm = squares.sum::<f64>().sqrt();
            for is_view in [false, true] {
                let shape = if is_view {
                    [columns, rows]
                } else {
                    [rows, columns]
                };
                let weight = Tensor::<2>::zeros(shape, device).cast(dtype).detach();
                let clipping = GlobalNormClippingConfig::Exact(1e9);
                let mut fused =
                    FusedOptimizer::new_ok(Param::from_tensor(weight), SgdConfig::new().init())
                        .with_config_ok(FusedConfig::clipping(clipping));
                fused.step_repeatable_ok(0.0, |weight| {
                    let weight = weight.val();
                    let weight = if is_view { weight.transpose() } else { weight };
                    // A sum would leave the range of half types.
                    (weight * gradient.clone()).cast(FloatDType::F32).sum()
                });
                let found = fused.last_step().gradient_norm.unwrap();
                // In f32 added up one after the other, on some backends.
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
    gradients_of_any_size_are_clipped_to_the_norm,
    norms_are_those_of_all_elements,
);

/// One over the scale is no f16.
#[test]
fn half_parameters_move_under_a_large_loss_scale() {
    let device = Device::flex().autodiff();
    let scale = 2f64.powi(26);
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let value = Tensor::<1>::ones([4], &device).cast(dtype);
        let weight = Param::from_tensor(value.detach());
        let scaling = LossScalingConfig::new()
            .with_initial_scale(scale)
            .with_growth_interval(None);
        let mut fused = FusedOptimizer::new_ok(weight, SgdConfig::new().init())
            .with_config_ok(FusedConfig::scaling(scaling));
        // Scaled, the gradient is 2^15.
        let gradient = Tensor::<1>::full([4], 2f64.powi(-11), &device);
        fused.step_repeatable_ok(16.0, |weight| {
            (weight.val().cast(FloatDType::F32) * gradient.clone()).sum()
        });
        assert!(!fused.last_step().overflowed);
        let moved: Vec<f64> = fused.model().val().into_data().iter().collect();
        assert_eq!(moved, [1.0 - 2f64.powi(-7); 4], "{dtype:?}");
    }
}

#[derive(Module, Debug)]
struct Elsewhere {
    here: Linear,
    there: Linear,
}

#[test]
#[allow(deprecated)] // Burn 0.22 still ships ndarray.
fn a_model_on_two_backends_is_clipped_as_on_one() {
    let here = Device::flex().autodiff();
    let init = |there: &Device| Elsewhere {
        here: LinearConfig::new(6, 6).init(&here),
        there: LinearConfig::new(6, 3).init(there),
    };
    let initial = init(&here);
    let x = batches(&here, 1).remove(0);
    let policies = [
        GlobalNormClippingConfig::Exact(1e-3),
        GlobalNormClippingConfig::Lagged(1e-3),
    ];
    for clipping in policies {
        let train = |there: Device| {
            let model = init(&there).load_record(initial.clone().into_record());
            let mut fused = FusedOptimizer::new_ok(model, SgdConfig::new().init())
                .with_config_ok(FusedConfig::clipping(clipping));
            for _ in 0..3 {
                fused.step_repeatable_ok(1.0, |model| {
                    let x = model.here.forward(x.clone()).tanh().to_device(&there);
                    model.there.forward(x).powi_scalar(2).sum().to_device(&here)
                });
                assert_eq!(fused.last_step().updated, 4);
            }
            (fused.model(), fused.last_step().clone())
        };
        let (one, one_report) = train(here.clone());
        let (two, two_report) = train(Device::ndarray().autodiff());
        for ((path, a), (_, b)) in weights(&one).iter().zip(weights(&two)) {
            a.assert_approx_eq::<f32>(&b, burn::tensor::Tolerance::absolute(1e-6));
            assert!(!path.is_empty());
        }
        let [a, b] = [one_report, two_report].map(|report| report.clipping.unwrap());
        assert!(a < 1.0 && (a / b - 1.0).abs() < 1e-5, "{a} and {b}");
    }
}
