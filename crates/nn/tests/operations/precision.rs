//! Gradients in f32 with large parts that cancel. They are as near to f64 as those of Burn's composition.

use backburn_base::AnyTensor;
use backburn_nn::{AttentionOptions, attention, layer_norm};
use burn::tensor::module as stock;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::norms::{EPSILON, layer};

/// An operation on two tensors. Its output has their shape.
type Operation<'a> = &'a dyn Fn(&[Tensor<4>; 2]) -> Tensor<4>;

#[allow(deprecated)] // Burn 0.22 still ships `ndarray`.
fn devices() -> Vec<Device> {
    vec![
        Device::flex().autodiff(),
        #[cfg(feature = "ndarray")]
        Device::ndarray().autodiff(),
    ]
}

/// Returns the gradient of the first tensor. The second one is the gradient of the output.
fn gradient(
    numbers: [&TensorData; 2],
    device: &Device,
    dtype: DType,
    operation: Operation<'_>,
) -> Vec<f64> {
    let [x, weights] = numbers.map(|data| {
        let data = data.clone().convert_dtype(dtype);
        Tensor::<4>::from_data(data, (device, dtype))
    });
    let x = x.require_grad();
    let gradients = (operation(&[x.clone(), weights.clone()]) * weights)
        .sum()
        .backward();
    let found = x.grad(&gradients).unwrap().into_data();
    found.convert_dtype(DType::F64).iter().collect()
}

#[track_caller]
fn assert_as_near_as_burn(
    what: &str,
    numbers: [TensorData; 2],
    ours: Operation<'_>,
    burns: Operation<'_>,
) {
    let numbers = numbers.each_ref();
    let exact = gradient(numbers, &devices()[0], DType::F64, burns);
    let largest = exact.iter().fold(0.0, |largest, it| it.abs().max(largest));
    for device in devices() {
        let distance = |operation| {
            let found = gradient(numbers, &device, DType::F32, operation);
            let distances = found.iter().zip(&exact).map(|(a, b)| (a - b).abs());
            distances.fold(0.0, f64::max) / largest
        };
        let (ours, burns) = (distance(ours), distance(burns));
        let allowed = 1.5 * burns + 3e-7;
        assert!(
            ours <= allowed,
            "{what} on {device:?}: {ours:e}, Burn {burns:e}"
        );
    }
}

/// Returns data in f32 numbers.
fn data(shape: [usize; 4], number: impl Fn(f64) -> f64) -> TensorData {
    let length: usize = shape.iter().product();
    let numbers = (0..length).map(|index| number(index as f64) as f32);
    TensorData::new(numbers.collect::<Vec<_>>(), shape)
}

#[test]
fn layer_norm_of_large_mean_is_near_f64() {
    let shape = [1, 1, 3, 768];
    let norm = |x: &Tensor<4>| {
        let gamma = Tensor::<1>::ones([768], (&x.device(), x.dtype()));
        layer(
            &AnyTensor::from(gamma.clone()),
            Some(&gamma.zeros_like().into()),
        )
    };
    for shift in [0.0, 30.0, 1000.0] {
        assert_as_near_as_burn(
            &format!("rows of mean {shift}"),
            [
                data(shape, |i| shift + (i * 0.7).sin()),
                data(shape, |i| (i * 1.3).sin() + 0.3 * (i * 0.7).sin() + 5.0),
            ],
            &|[x, _]| layer_norm(&norm(x), EPSILON, x.clone()),
            &|[x, _]| norm(x).forward(x.clone()),
        );
    }
}

#[test]
fn attention_to_one_key_is_near_f64() {
    let shape = [1, 1, 32, 16];
    for scale in [1.0, 4.0, 8.0] {
        assert_as_near_as_burn(
            &format!("scale {scale}"),
            [
                data(shape, |i| (i * i * 0.37 + i).sin().signum()),
                data(shape, |i| (i * 1.3).sin() + 2.0),
            ],
            &|[x, value]| {
                let options = AttentionOptions {
                    scale: Some(scale),
                    ..AttentionOptions::default()
                };
                let key = x.clone().detach();
                attention(x.clone(), key, value.clone(), None, options)
            },
            &|[x, value]| {
                let options = AttentionModuleOptions {
                    scale: Some(scale),
                    ..AttentionModuleOptions::default()
                };
                let key = x.clone().detach();
                stock::attention(x.clone(), key, value.clone(), None, None, options)
            },
        );
    }
}
