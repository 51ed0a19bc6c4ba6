//! Quantized parameters, as after `Module::quantize_weights`. They are constants.

use backburn_nn::{layer_norm, linear_cross_entropy, rms_norm};
use burn::module::{Module, Param, Quantizer};
use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{Device, Int, Tensor};

fn numbers<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let all = Tensor::<1, Int>::arange(0..shape.iter().product::<usize>() as i64, device);
    (all.float() * 0.7).sin().reshape(shape)
}

fn quantized<M: Module>(module: M) -> M {
    module.quantize_weights(&mut Quantizer::new(
        Calibration::MinMax,
        QuantScheme::default(),
    ))
}

/// Checks the output of an operation, and the gradient of its input, if `device` is under autodiff.
#[track_caller]
fn assert_equal(
    device: &Device,
    operation: impl Fn(Tensor<2>) -> Tensor<2>,
    stock: impl Fn(Tensor<2>) -> Tensor<2>,
) {
    let run = |operation: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let x = numbers([3, 32], device);
        if !device.is_autodiff() {
            return vec![operation(x).into_data()];
        }
        let x = x.require_grad();
        let output = operation(x.clone());
        let gradients = output.clone().sum().backward();
        vec![output.into_data(), x.grad(&gradients).unwrap().into_data()]
    };
    for (found, expected) in run(&operation).iter().zip(run(&stock)) {
        found.assert_approx_eq::<f32>(&expected, Default::default());
    }
}

#[test]
fn quantized_norm_equals_burn() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let norm = quantized(RmsNormConfig::new(32).init(&device));
        assert_equal(&device, |x| rms_norm(&norm, x), |x| norm.forward(x));
        let norm = quantized(LayerNormConfig::new(32).init(&device));
        assert_equal(&device, |x| layer_norm(&norm, 1e-5, x), |x| norm.forward(x));
    }
}

#[test]
fn quantized_head_equals_dense_head() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let head = quantized(Param::from_tensor(numbers([32, 32], &device)));
        let dense = head.val().dequantize();
        let targets = Tensor::<1, Int>::from_data([1, 0, 31], &device);
        let loss = |x, weight| {
            let loss = linear_cross_entropy(x, weight, targets.clone(), None, &Default::default());
            loss.unsqueeze()
        };
        assert_equal(&device, |x| loss(x, head.val()), |x| loss(x, dense.clone()));
    }
}
